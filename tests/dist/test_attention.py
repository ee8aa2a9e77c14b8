"""Context-parallel attention against one process: outputs, gradients, whole models, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planc.devices.attention_kernels import ring_steps
from planc.runtime.torch.attention import ring
from planc.runtime.torch.attention.register import Kind, register_attention
from planc.runtime.torch.attention.sharding import Balance, local_positions, shard, unshard
from tests.dist.pool import RankError, run_ranks

KINDS: tuple[Kind, ...] = ("ring", "allgather", "ulysses")
BALANCES: tuple[Balance, ...] = ("headtail", "none")
KV_HEADS = (8, 2, 1)
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}
NUM_HEADS, HEAD_DIM, BATCH, SEQUENCE_LENGTH = 8, 16, 2, 48

Errors = dict[str, float]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest expected value."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def random_inputs(*, num_kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value and the gradient of the output, the same on every rank."""
    generator = torch.Generator().manual_seed(num_kv_heads)
    heads = (NUM_HEADS, num_kv_heads, num_kv_heads, NUM_HEADS)
    query, key, value, grad_out = (
        torch.randn(BATCH, num, SEQUENCE_LENGTH, HEAD_DIM, generator=generator, dtype=dtype) for num in heads
    )
    return query, key, value, grad_out


def registered(name: str) -> Callable[..., tuple[Tensor, None]]:
    function: Callable[..., tuple[Tensor, None]] = ALL_ATTENTION_FUNCTIONS[name]
    return function


def attend(name: str, *, query: Tensor, key: Tensor, value: Tensor, **keywords: object) -> Tensor:
    """What the registered attention returns, as [B, H, S, D]."""
    out, weights = registered(name)(None, query, key, value, None, **keywords)
    assert weights is None
    return out.transpose(1, 2)


def reference_attention(query: Tensor, *, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention by PyTorch with repeated key-value heads."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def case_errors(
    name: str, *, num_kv_heads: int, dtype: torch.dtype, sharding: Balance, rank: int, cp: int
) -> Errors:
    """Errors of the output and of the gradients of query, key and value on this rank.

    The reference runs on the same values, in float32 where `dtype` is narrower.
    """
    *tensors, grad_out = random_inputs(num_kv_heads=num_kv_heads, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    query, key, value = whole = leaves(*(tensor.to(wide) for tensor in tensors))
    out = reference_attention(query, key=key, value=value)
    expected = [out.detach(), *torch.autograd.grad(out, whole, grad_out.to(wide))]

    def local(tensor: Tensor) -> Tensor:
        return shard(tensor, tensor_dim=2, parts=cp, index=rank, balance=sharding)

    query, key, value = parts = leaves(*map(local, tensors))
    out = attend(name, query=query, key=key, value=value)
    assert out.dtype == dtype
    actual = [out.detach(), *torch.autograd.grad(out, parts, local(grad_out))]
    labels = ("out", "grad_query", "grad_key", "grad_value")
    pairs = zip(actual, map(local, expected), strict=True)
    return dict(zip(labels, (relative_error(got.to(wide), want) for got, want in pairs), strict=True))


def attention_errors(rank: int, cp: int) -> Errors:
    """Errors of every kind, balance, grouping and dtype, over their tolerance, by case."""
    errors: Errors = {}
    for kind, balance in product(KINDS, BALANCES):
        name = register_attention(kind, group=dist.group.WORLD, balance=balance, name="test")
        for num_kv_heads, dtype in product(KV_HEADS, TOLERANCES):
            case = case_errors(
                name, num_kv_heads=num_kv_heads, dtype=dtype, sharding=balance, rank=rank, cp=cp
            )
            for label, error in case.items():
                errors[f"{kind} {balance} kv={num_kv_heads} {dtype} {label}"] = error / TOLERANCES[dtype]
    return errors


def misplaced_errors(rank: int, cp: int) -> Errors:
    """The output's error if the inputs are sharded differently from what the attention expects."""
    errors: Errors = {}
    for kind, (told, sharding) in product(KINDS, (BALANCES, BALANCES[::-1])):
        name = register_attention(kind, group=dist.group.WORLD, balance=told, name="test")
        case = case_errors(name, num_kv_heads=2, dtype=torch.float64, sharding=sharding, rank=rank, cp=cp)
        errors[f"{kind} told {told}"] = case["out"]
    return errors


def tiny_llama(attention: str) -> LlamaForCausalLM:
    """The same two-layer model on every rank, float32."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config._attn_implementation = attention
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def model_gradients(
    model: nn.Module, *, tokens: Tensor, labels: Tensor, positions: Tensor, num_tokens: int
) -> dict[str, Tensor]:
    """The summed loss over `num_tokens`, and the gradient of every parameter."""
    logits = model(input_ids=tokens, position_ids=positions.unsqueeze(0), use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / num_tokens
    torch.autograd.backward(loss)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(grad is not None for grad in found.values())
    return {"loss": loss.detach(), **{name: grad for name, grad in found.items() if grad is not None}}


def model_errors(rank: int, cp: int) -> Errors:
    """Errors of the loss and every gradient of a model under cp, by kind and balance."""
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(0, 64, (2, 33), generator=generator)
    tokens, labels, positions = text[:, :-1], text[:, 1:], torch.arange(32)
    expected = model_gradients(
        tiny_llama("sdpa"), tokens=tokens, labels=labels, positions=positions, num_tokens=labels.numel()
    )
    errors: Errors = {}
    for kind, balance in product(KINDS, BALANCES):
        name = register_attention(kind, group=dist.group.WORLD, balance=balance, name="test")
        local = [
            shard(tensor, tensor_dim=1, parts=cp, index=rank, balance=balance) for tensor in (tokens, labels)
        ]
        actual = model_gradients(
            tiny_llama(name),
            tokens=local[0],
            labels=local[1],
            positions=local_positions(32, parts=cp, index=rank, balance=balance),
            num_tokens=labels.numel(),
        )
        for label, tensor in actual.items():
            dist.all_reduce(tensor)
            errors[f"{kind} {balance} {label}"] = relative_error(tensor, expected[label])
    return errors


def ulysses_call(rank: int, cp: int, num_heads: int, num_kv_heads: int) -> None:
    name = register_attention("ulysses", group=dist.group.WORLD, balance="none", name="test")
    query, key = torch.zeros(1, num_heads, 4, 8), torch.zeros(1, num_kv_heads, 4, 8)
    attend(name, query=query, key=key, value=key)


def window_call(rank: int, cp: int, kind: Kind, window: int) -> None:
    name = register_attention(kind, group=dist.group.WORLD, balance="none", name="test")
    query = torch.zeros(1, 2, 4, 8)
    attend(name, query=query, key=query, value=query, sliding_window=window)


def odd_headtail_call(rank: int, cp: int, kind: Kind) -> None:
    name = register_attention(kind, group=dist.group.WORLD, balance="headtail", name="test")
    query = torch.zeros(1, 2, 3, 8)
    attend(name, query=query, key=query, value=query)


def bfloat16_errors(rank: int, cp: int) -> Errors:
    """Errors of every kind's output and gradients in bfloat16 against float32."""
    errors: Errors = {}
    for kind in KINDS:
        name = register_attention(kind, group=dist.group.WORLD, balance="headtail", name="test")
        case = case_errors(name, num_kv_heads=2, dtype=torch.bfloat16, sharding="headtail", rank=rank, cp=cp)
        errors |= {f"{kind} {label}": error for label, error in case.items()}
    return errors


def fake_shapes(rank: int, world_size: int) -> dict[str, list[torch.Size]]:
    """Shapes of the output and of the gradients of query and key, on rank 3 of a fake world of 8."""
    dist.init_process_group("fake", rank=3, world_size=8)
    shapes = {}
    for kind, balance in product(KINDS, BALANCES):
        name = register_attention(kind, group=dist.group.WORLD, balance=balance, name="test")
        with FakeTensorMode():
            query, key, value = inputs = leaves(*(torch.empty(1, num, 32, 16) for num in (8, 2, 2)))
            out, _ = registered(name)(None, query, key, value, None)
            grads = torch.autograd.grad(out, inputs, torch.empty_like(out))
        shapes[f"{kind} {balance}"] = [out.shape, grads[0].shape, grads[1].shape]
    return shapes


def worst(results: list[Errors]) -> Errors:
    """Each case's largest error over the ranks."""
    return {case: max(errors[case] for errors in results) for case in results[0]}


def plain() -> str:
    return register_attention("plain", group=None, balance="none", name="test")


@pytest.mark.parametrize("cp", [2, 4])
def test_every_kind_and_balance_computes_what_one_process_computes(cp: int) -> None:
    errors = worst(run_ranks(attention_errors, cp))
    assert len(errors) == len(KINDS) * len(BALANCES) * len(KV_HEADS) * len(TOLERANCES) * 4
    assert {case: error for case, error in errors.items() if not error <= 1} == {}


def test_a_model_under_cp_has_the_loss_and_gradients_of_one_process() -> None:
    errors = worst(run_ranks(model_errors, 2))
    assert {case: error for case, error in errors.items() if not error <= 1e-5} == {}


def test_inputs_sharded_otherwise_than_told_give_another_output() -> None:
    errors = worst(run_ranks(misplaced_errors, 2))
    assert {case: error for case, error in errors.items() if not error > 1e-2} == {}


def test_bfloat16_stays_near_float32() -> None:
    # bfloat16 rounds to 2^-9 relative; inputs of the backward are rounded outputs, so a few roundings add up.
    errors = worst(run_ranks(bfloat16_errors, 2))
    assert {case: error for case, error in errors.items() if not error <= 2**-6} == {}


@pytest.mark.parametrize("balance", BALANCES)
def test_unshard_restores_what_shard_took_apart(balance: Balance) -> None:
    tensor = torch.arange(2 * 16 * 3).view(2, 16, 3)
    shards = [shard(tensor, tensor_dim=1, parts=4, index=index, balance=balance) for index in range(4)]
    assert torch.equal(unshard(shards, tensor_dim=1, balance=balance), tensor)


def test_headtail_holds_one_chunk_from_each_end() -> None:
    held = [local_positions(8, parts=2, index=index, balance="headtail").tolist() for index in range(2)]
    assert held == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_no_balance_holds_contiguous_chunks() -> None:
    held = [local_positions(8, parts=2, index=index, balance="none").tolist() for index in range(2)]
    assert held == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_length_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="length 6 is not divisible by 4"):
        local_positions(6, parts=2, index=0, balance="headtail")


@pytest.mark.parametrize("window", [1, 5, SEQUENCE_LENGTH - 1])
def test_plain_attention_with_a_window_equals_an_explicit_mask(window: int) -> None:
    query, key, value, _ = random_inputs(num_kv_heads=2, dtype=torch.float64)
    row, column = torch.arange(SEQUENCE_LENGTH)[:, None], torch.arange(SEQUENCE_LENGTH)[None, :]
    scores = query @ key.repeat_interleave(4, 1).transpose(-1, -2) * HEAD_DIM**-0.5
    scores = scores.masked_fill((column > row) | (column <= row - window), -torch.inf)
    expected = scores.softmax(-1) @ value.repeat_interleave(4, 1)
    actual = attend(plain(), query=query, key=key, value=value, sliding_window=window)
    assert relative_error(actual, expected) <= 1e-12


def test_plain_attention_equals_the_reference_and_scales_as_told() -> None:
    query, key, value, _ = random_inputs(num_kv_heads=2, dtype=torch.float64)
    expected = reference_attention(query * 0.5 * HEAD_DIM**0.5, key=key, value=value)
    assert relative_error(attend(plain(), query=query, key=key, value=value, scaling=0.5), expected) <= 1e-12


def test_a_window_as_long_as_the_sequence_hides_nothing() -> None:
    query, key, value, _ = random_inputs(num_kv_heads=2, dtype=torch.float64)
    actual = attend(plain(), query=query, key=key, value=value, sliding_window=SEQUENCE_LENGTH)
    assert torch.equal(actual, attend(plain(), query=query, key=key, value=value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("position_bias", torch.zeros(4, 4)),
        ("cu_seq_lens_q", torch.tensor([0, 4])),
        ("seq_idx", torch.zeros(1, 4)),
        ("is_causal", False),
        ("output_attentions", True),
        ("dropout", 0.1),
        ("a_keyword_of_tomorrow", 0),
    ],
)
def test_what_would_change_the_maths_is_refused_by_name(name: str, value: object) -> None:
    query = torch.zeros(1, 2, 4, 8)
    with pytest.raises(ValueError, match=name):
        attend(plain(), query=query, key=query, value=query, **{name: value})


def test_an_attention_mask_is_refused() -> None:
    query = torch.zeros(1, 2, 4, 8)
    with pytest.raises(ValueError, match="attention_mask"):
        registered(plain())(None, query, query, query, torch.ones(1, 1, 4, 4))


def test_a_bidirectional_module_is_refused() -> None:
    module = nn.Module()
    module.is_causal = False  # type: ignore[assignment]
    query = torch.zeros(1, 2, 4, 8)
    with pytest.raises(ValueError, match="is_causal = False on Module"):
        registered(plain())(module, query, query, query, None)


def test_keys_from_a_cache_are_refused() -> None:
    query, key = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 4, 8)
    with pytest.raises(ValueError, match="a key-value cache is not supported"):
        attend(plain(), query=query, key=key, value=key)


def test_harmless_keywords_pass() -> None:
    query = torch.zeros(1, 2, 4, 8)
    harmless: dict[str, object] = {
        "cache_position": torch.arange(4),
        "is_causal": True,
        "output_attentions": False,
        "position_ids": torch.arange(4),
        "softcap": None,
        "use_cache": False,
    }
    assert attend(plain(), query=query, key=query, value=query, **harmless).shape == query.shape


def window_errors(rank: int, cp: int, window: int) -> Errors:
    """Errors of output and gradients under a window, against one process with that window."""
    errors: Errors = {}
    for kind, balance in product(KINDS if cp == 2 else ("ring",), BALANCES):
        name = register_attention(kind, group=dist.group.WORLD, balance=balance, name="test")
        query, key, value, grad = (seeded(index, 4 if index % 3 == 0 else 2) for index in range(4))
        whole = leaves(query, key, value)
        expected = attend(plain(), query=whole[0], key=whole[1], value=whole[2], sliding_window=window)
        expected_grads = torch.autograd.grad(expected, whole, grad)
        local = [shard(one, tensor_dim=2, parts=cp, index=rank, balance=balance) for one in (*whole, grad)]
        inputs = leaves(*(one.detach() for one in local[:3]))
        actual = attend(name, query=inputs[0], key=inputs[1], value=inputs[2], sliding_window=window)
        grads = torch.autograd.grad(actual, inputs, local[3])
        pairs = ((actual, expected), *zip(grads, expected_grads, strict=True))
        for label, (part, one) in zip(("out", "query", "key", "value"), pairs, strict=True):
            own = shard(one, tensor_dim=2, parts=cp, index=rank, balance=balance)
            errors[f"{kind} {balance} {label}"] = relative_error(part, own)
    return errors


def seeded(seed: int, num_heads: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, num_heads, 16, 8, generator=generator, dtype=torch.float64)


WINDOWS = (2, 5), *(pytest.param(4, window, marks=pytest.mark.slow) for window in (2, 3, 4, 5, 9, 15))
"""The size of cp, and the window."""


@pytest.mark.parametrize(("cp", "window"), WINDOWS)
def test_a_window_under_cp_hides_what_it_hides_in_one_process(cp: int, window: int) -> None:
    errors = worst(run_ranks(window_errors, cp, window))
    assert {case: error for case, error in errors.items() if not error <= 1e-12} == {}


def steps_by_pairs(size: int, *, length: int, window: int, balance: Balance) -> tuple[int, ...]:
    """The distances between two ranks of which one has a token that the other's sees."""
    held = [local_positions(size * length, parts=size, index=rank, balance=balance) for rank in range(size)]

    def sees(own: Tensor, other: Tensor) -> bool:
        before = own[:, None] - other[None, :]
        return bool(((before >= 0) & (before < window)).any())

    return tuple(
        step for step in range(size) if any(sees(held[rank], held[rank - step]) for rank in range(size))
    )


@pytest.mark.parametrize("balance", BALANCES)
def test_a_ring_skips_the_ranks_that_no_window_reaches(balance: Balance) -> None:
    for size, window in product((1, 2, 3, 4, 8), (1, 2, 3, 5, 6, 13, 24)):
        steps = ring_steps(size, length=6, window=window, is_headtail=balance == "headtail")
        assert steps == steps_by_pairs(size, length=6, window=window, balance=balance), (size, window)
    assert len(ring_steps(8, length=6, window=4, is_headtail=balance == "headtail")) < 4


def skipping_errors(rank: int, cp: int) -> Errors:
    """The errors of a ring that leaves one needed rank out."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(ring, "ring_steps", lambda *_, **__: (0,))
        return window_errors(rank, cp, 5)


def test_a_ring_that_skips_a_rank_that_it_needs_is_not_exact() -> None:
    errors = worst(run_ranks(skipping_errors, 2))
    rings = {case: error for case, error in errors.items() if case.startswith("ring")}
    assert rings and {case: error for case, error in rings.items() if not error > 1e-2} == {}


def test_a_window_as_long_as_the_whole_sequence_passes_under_cp() -> None:
    assert run_ranks(window_call, 2, "ring", 8) == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_headtail_shard_is_refused(kind: Kind) -> None:
    with pytest.raises(RankError, match="ValueError: a headtail shard has two equal chunks"):
        run_ranks(odd_headtail_call, 2, kind)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "message"),
    [(6, 6, "6 heads, cp = 4"), (12, 3, "key-value heads divisible by cp, or cp by them: 3 heads, cp = 4")],
)
def test_ulysses_refuses_heads_that_do_not_divide(num_heads: int, num_kv_heads: int, message: str) -> None:
    with pytest.raises(RankError, match=message):
        run_ranks(ulysses_call, 4, num_heads, num_kv_heads)


def test_a_cp_kind_without_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="ring attention needs the process group"):
        register_attention("ring", group=None, balance="none", name="test")


def test_two_registrations_never_share_a_name() -> None:
    assert plain() != plain()


def test_every_kind_runs_on_fake_tensors_in_a_fake_world() -> None:
    shapes = run_ranks(fake_shapes, 1, init=False)[0]
    expected = [(1, 32, 8, 16), (1, 8, 32, 16), (1, 2, 32, 16)]
    assert {case: got for case, got in shapes.items() if got != expected} == {}
