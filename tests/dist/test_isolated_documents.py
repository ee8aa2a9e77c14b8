"""Documents that share a sequence and do not see each other: outputs, gradients and probes, over cp too."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.attention.register import Kind, register_attention
from planc.runtime.torch.attention.sharding import Balance, shard
from tests.dist.largest_tensor import LargestTensor
from tests.dist.pool import run_ranks

VARIANTS: tuple[tuple[Kind, Balance], ...] = tuple(
    product(("ring", "allgather", "ulysses"), ("headtail", "none"))
)
LENGTHS = ((5, 1, 11, 7), (3, 21))
"""Documents of each sequence of a batch: within a chunk, on its edge, over several, and one of one token."""
LENGTH, NUM_HEADS, HEAD_DIM = 24, 4, 16
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}

Errors = dict[str, float]


def positions() -> Tensor:
    """[B, LENGTH], restarting with every document."""
    return torch.stack([torch.cat([torch.arange(length) for length in row]) for row in LENGTHS])


def attention(kind: Kind, balance: Balance, *, isolates: bool = True) -> str:
    documents = Documents() if isolates else None
    if documents is not None:
        documents.begin(positions().numpy(), on_device=positions())
    group = None if kind == "plain" else dist.group.WORLD
    return register_attention(kind, group=group, balance=balance, name="test", documents=documents)


def reference(query: Tensor, *, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
    """Attention computed for each document on its own."""
    key, value = (tensor.repeat_interleave(NUM_HEADS // tensor.shape[1], 1) for tensor in (key, value))
    rows = []
    for row, lengths in enumerate(LENGTHS):
        parts = zip(*(tensor[row : row + 1].split(lengths, 2) for tensor in (query, key, value)), strict=True)
        rows.append(torch.cat([alone(*part, window=window) for part in parts], 2))
    return torch.cat(rows)


def alone(query: Tensor, key: Tensor, value: Tensor, *, window: int | None) -> Tensor:
    if window is None:
        return scaled_dot_product_attention(query, key, value, is_causal=True)
    length = query.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    return scaled_dot_product_attention(query, key, value, attn_mask=seen)


def inputs(*, num_kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    """Query, key, value and the gradient of the output, the same on every rank."""
    generator = torch.Generator().manual_seed(num_kv_heads)
    heads = (NUM_HEADS, num_kv_heads, num_kv_heads, NUM_HEADS)
    return [torch.randn(2, num, LENGTH, HEAD_DIM, generator=generator, dtype=dtype) for num in heads]


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def attention_errors(rank: int, cp: int) -> Errors:
    """Errors of outputs and gradients of every variant over their tolerance, by case."""
    errors: Errors = {}
    for (kind, balance), num_kv_heads, dtype in product(VARIANTS, (4, 2, 1), TOLERANCES):
        *whole, grad_out = inputs(num_kv_heads=num_kv_heads, dtype=dtype)
        query, key, value = expected_of = leaves(*whole)
        out = reference(query, key=key, value=value)
        expected = [out.detach(), *torch.autograd.grad(out, expected_of, grad_out)]

        def local(tensor: Tensor, balance: Balance = balance) -> Tensor:
            return shard(tensor, tensor_dim=2, parts=cp, index=rank, balance=balance)

        parts = leaves(*map(local, whole))
        got, _ = ALL_ATTENTION_FUNCTIONS[attention(kind, balance)](None, *parts, None)
        got = got.transpose(1, 2)
        actual = [got.detach(), *torch.autograd.grad(got, parts, local(grad_out))]
        labels = ("out", "grad_query", "grad_key", "grad_value")
        for label, one, other in zip(labels, actual, map(local, expected), strict=True):
            error = relative_error(one, other) / TOLERANCES[dtype]
            errors[f"{kind} {balance} kv={num_kv_heads} {dtype} {label}"] = error
    return errors


def logits_of(name: str, tokens: Tensor, position_ids: Tensor) -> Tensor:
    """What the same small model gives on every rank."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config._attn_implementation = name
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).double()
    with torch.no_grad():
        found: Tensor = model(input_ids=tokens, position_ids=position_ids, use_cache=False).logits
    return found


def changed_positions(rank: int, cp: int, isolates: bool) -> dict[str, list[list[int]]]:
    """By variant, how many of this rank's logits of each document move when the first documents change."""
    generator = torch.Generator().manual_seed(1)
    before = torch.randint(0, 64, (2, LENGTH), generator=generator)
    after = before.clone()
    for row, lengths in enumerate(LENGTHS):
        after[row, : lengths[0]] = (after[row, : lengths[0]] + 1) % 64
    variants: tuple[tuple[Kind, Balance], ...] = VARIANTS if cp > 1 else (("plain", "none"),)
    found = {}
    for kind, balance in variants:
        places = positions() if isolates else torch.arange(LENGTH).expand(2, -1)

        def local(tensor: Tensor, balance: Balance = balance) -> Tensor:
            return shard(tensor, tensor_dim=1, parts=cp, index=rank, balance=balance)

        name = attention(kind, balance, isolates=isolates)
        pair = [logits_of(name, local(tokens), local(places)) for tokens in (before, after)]
        moved = (pair[0] != pair[1]).any(-1)
        numbers = local(torch.stack([_numbers(lengths) for lengths in LENGTHS]))
        found[f"{kind} {balance}"] = [
            [int(moved[row][numbers[row] == number].sum()) for number in range(len(lengths))]
            for row, lengths in enumerate(LENGTHS)
        ]
    return found


def _numbers(lengths: tuple[int, ...]) -> Tensor:
    """[LENGTH]: which document a position is of."""
    return torch.cat([torch.full((length,), number) for number, length in enumerate(lengths)])


def moved(cp: int, *, isolates: bool) -> dict[str, list[list[int]]]:
    """The sum over ranks of the logits that moved, by variant, sequence and document."""
    ranks = run_ranks(changed_positions, cp, isolates)
    return {
        variant: [
            [sum(numbers) for numbers in zip(*rows, strict=True)]
            for rows in zip(*(rank[variant] for rank in ranks), strict=True)
        ]
        for variant in ranks[0]
    }


def fake_shapes(rank: int, world_size: int) -> dict[str, list[torch.Size]]:
    """Shapes of the output and of the gradients of query and key, on rank 3 of a fake world of 4."""
    dist.init_process_group("fake", rank=3, world_size=4)
    shapes = {}
    for kind, balance in VARIANTS:
        documents = Documents()
        name = register_attention(
            kind, group=dist.group.WORLD, balance=balance, name="test", documents=documents
        )
        with FakeTensorMode():
            documents.begin(
                np.zeros((1, 64), dtype=np.int64), on_device=torch.zeros((1, 64), dtype=torch.int64)
            )
            parts = leaves(*(torch.empty(1, num, 16, 8) for num in (8, 4, 4)))
            out, _ = ALL_ATTENTION_FUNCTIONS[name](None, *parts, None)
            grads = torch.autograd.grad(out, parts, torch.empty_like(out))
        shapes[f"{kind} {balance}"] = [out.shape, grads[0].shape, grads[1].shape]
    return shapes


@pytest.mark.parametrize("cp", [2, 4])
def test_every_variant_attends_to_each_document_alone(cp: int) -> None:
    found = run_ranks(attention_errors, cp)
    worst = {case: max(errors[case] for errors in found) for case in found[0]}
    assert len(worst) == len(VARIANTS) * 3 * len(TOLERANCES) * 4
    assert {case: error for case, error in worst.items() if not error <= 1} == {}


@pytest.mark.parametrize("window", [None, 1, 4, 12])
def test_plain_attention_attends_to_each_document_alone_within_a_window(window: int | None) -> None:
    query, key, value, _ = inputs(num_kv_heads=2, dtype=torch.float64)
    attend = ALL_ATTENTION_FUNCTIONS[attention("plain", "none")]
    out, _ = attend(None, query, key, value, None, sliding_window=window)
    expected = reference(query, key=key, value=value, window=window)
    assert relative_error(out.transpose(1, 2), expected) <= 1e-12


def test_no_scores_between_documents_exist() -> None:
    """A mask of the whole sequence alone would have 2_048 x 2_048 elements."""
    documents, length = Documents(), 2_048
    places = np.tile(np.arange(128), (1, length // 128))
    documents.begin(places, on_device=torch.from_numpy(places))
    name = register_attention("plain", group=None, balance="none", name="test", documents=documents)
    query = torch.randn(1, 2, length, 8, requires_grad=True)
    with LargestTensor() as largest:
        out, _ = ALL_ATTENTION_FUNCTIONS[name](None, query, query, query, None)
        out.sum().backward()
    assert largest.num_elements == query.numel()


def largest_tensors(rank: int, cp: int) -> dict[str, int]:
    """By variant, the elements of the largest tensor of a forward and a backward with 16 documents."""
    length, found = 2_048, {}
    places = np.tile(np.arange(128), (1, length // 128))
    for kind, balance in VARIANTS:
        documents = Documents()
        documents.begin(places, on_device=torch.from_numpy(places))
        group = dist.group.WORLD
        name = register_attention(kind, group=group, balance=balance, name="test", documents=documents)
        query = torch.randn(1, 2, length // cp, 8, requires_grad=True)
        with LargestTensor() as largest:
            out, _ = ALL_ATTENTION_FUNCTIONS[name](None, query, query, query, None)
            out.sum().backward()
        found[f"{kind} {balance}"] = largest.num_elements
    return found


def test_no_rank_of_cp_holds_scores_or_masks_between_documents() -> None:
    """Keys and values of the whole sequence are the most; a mask would have 1_024 x 1_024 elements."""
    whole = 2 * 2 * 2_048 * 8
    for found in run_ranks(largest_tensors, 2):
        assert {name: size for name, size in found.items() if size > whole} == {}


def errors_within_windows(rank: int, cp: int) -> Errors:
    """Errors of outputs and gradients of documents with a window over cp, where windows are supported."""
    errors: Errors = {}
    variants = [variant for variant in VARIANTS if variant[0] != "ring"]
    for (kind, balance), window in product(variants, (2, 4, 12)):
        *whole, grad_out = inputs(num_kv_heads=2, dtype=torch.float64)
        wide = leaves(*whole)
        out = reference(wide[0], key=wide[1], value=wide[2], window=window)
        expected = [out.detach(), *torch.autograd.grad(out, wide, grad_out)]

        def local(tensor: Tensor, balance: Balance = balance) -> Tensor:
            return shard(tensor, tensor_dim=2, parts=cp, index=rank, balance=balance)

        parts = leaves(*map(local, whole))
        attend = ALL_ATTENTION_FUNCTIONS[attention(kind, balance)]
        got, _ = attend(None, *parts, None, sliding_window=window)
        got = got.transpose(1, 2)
        actual = [got.detach(), *torch.autograd.grad(got, parts, local(grad_out))]
        error = max(map(relative_error, actual, map(local, expected)))
        errors[f"{kind} {balance} {window}"] = error
    return errors


def test_documents_have_windows_over_cp_too() -> None:
    for errors in run_ranks(errors_within_windows, 2):
        assert len(errors) == 12
        assert {case: error for case, error in errors.items() if not error <= 1e-12} == {}


@pytest.mark.parametrize("cp", [1, 2])
def test_a_changed_document_moves_nothing_of_another(cp: int) -> None:
    for variant, rows in moved(cp, isolates=True).items():
        assert rows == [[5, 0, 0, 0], [3, 0]], variant


@pytest.mark.parametrize("cp", [1, 2])
def test_documents_that_attend_to_each_other_move_with_one_another(cp: int) -> None:
    for variant, rows in moved(cp, isolates=False).items():
        assert rows == [[5, 1, 11, 7], [3, 21]], variant


@pytest.mark.slow
def test_a_fake_world_has_the_shapes_of_a_real_one() -> None:
    (shapes,) = run_ranks(fake_shapes, 1, init=False)
    expected = [torch.Size([1, 16, 8, 8]), torch.Size([1, 8, 16, 8]), torch.Size([1, 4, 16, 8])]
    assert shapes == {f"{kind} {balance}": expected for kind, balance in VARIANTS}
