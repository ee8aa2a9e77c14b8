"""Each kernel of attention against products and a softmax in float64: outputs, gradients, what is kept.

CUDA's memory-efficient kernel is stood in for by one that takes only what it takes, so the padding, the
repeated heads and the merged log-sum-exps around it run here. tests/gpu/kernels.py runs the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from planc.devices import attention_kernels
from planc.devices.attention_kernels import AttentionCall, Kernel, kernel_of
from planc.runtime.torch import private
from planc.runtime.torch.attention import kernels, plain
from planc.runtime.torch.attention.blocks import lower_right_attention
from planc.runtime.torch.attention.plain import plain_attention
from planc.runtime.torch.attention.register import Kind, register_attention
from planc.runtime.torch.attention.sharding import Balance, shard
from planc.runtime.torch.attention.windows import Windows, window_attention
from planc.vocab import DType
from tests.dist.pool import run_ranks
from tests.dist.test_attention import attend, leaves, random_inputs, reference_attention, relative_error

SCALE, KEYS = 0.3, 37
HEADS = ((4, 4), (4, 2), (4, 1))
DIMS = ((16, 16), (24, 16), (20, 20), (18, 7), (16, 24))
LENGTHS = (5, 36, KEYS)
ROWS = 8
"""The queries that products and a softmax take at a time here."""


class EfficientKernel:
    """PyTorch's memory-efficient kernel on CUDA: what it accepts, what it returns, in plain products."""

    def __init__(self) -> None:
        self.calls: list[torch.Size] = []

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        keeps_lse: bool,
        dropout: float,
        causal: bool,
        *,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert keeps_lse and dropout == 0.0
        self._require(query, key, value, bias)
        self.calls.append(query.shape)
        scores = self._scores(query, key, bias, causal=causal, scale=scale)
        lse = torch.full((*query.shape[:2], -(-query.shape[2] // 32) * 32), torch.inf)
        lse[:, :, : query.shape[2]] = scores.logsumexp(-1)
        return (scores.softmax(-1) @ value).to(query.dtype), lse, torch.tensor(1), torch.tensor(2)

    def backward(
        self,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        out: Tensor,
        lse: Tensor,
        seed: Tensor,
        offset: Tensor,
        dropout: float,
        needed: Sequence[bool],
        causal: bool,
        *,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        assert (seed.item(), offset.item(), dropout, list(needed)) == (1, 2, 0.0, [True, True, True, False])
        self._require(query, key, value, bias)
        assert lse.shape[2] % 32 == 0 and torch.isinf(lse[:, :, query.shape[2] :]).all()
        scores = self._scores(query, key, bias, causal=causal, scale=scale)
        weights = (scores - lse[:, :, : query.shape[2], None]).exp()
        delta = (grad_out * out).sum(-1, keepdim=True)
        grad_scores = weights * (grad_out @ value.mT - delta) * scale
        return grad_scores @ key, grad_scores.mT @ query, weights.mT @ grad_out, None

    @staticmethod
    def _require(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> None:
        assert query.shape[1] == key.shape[1] == value.shape[1], "no grouped heads"
        assert query.dtype == key.dtype == value.dtype == torch.float32
        assert query.shape[-1] == key.shape[-1]
        assert all(one.shape[-1] % 4 == 0 and one.stride(-1) == 1 for one in (query, key, value))
        if bias is not None:
            assert bias.shape == (*query.shape[:3], key.shape[2]) and bias.stride(2) % 16 == 0

    @staticmethod
    def _scores(query: Tensor, key: Tensor, bias: Tensor | None, *, causal: bool, scale: float) -> Tensor:
        scores = query @ key.mT * scale
        if causal:
            assert query.shape[2] == key.shape[2]
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        return scores if bias is None else scores + bias


def efficient(monkeypatch: pytest.MonkeyPatch) -> EfficientKernel:
    """Let every call be one of a CUDA device in float32."""
    kernel = EfficientKernel()
    monkeypatch.setattr(kernels, "kernel_of", lambda _, **__: Kernel.EFFICIENT)
    monkeypatch.setattr(kernels, "head_dim_multiple", lambda *_, **__: 4)
    monkeypatch.setattr(private, "efficient_attention", kernel.forward)
    monkeypatch.setattr(private, "efficient_attention_backward", kernel.backward)
    return kernel


def flash(_: pytest.MonkeyPatch) -> None:
    """Let every call be one of a CPU."""


def math(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call be one that no fused kernel takes, of few queries at a time."""
    monkeypatch.setattr(kernels, "kernel_of", lambda _, **__: Kernel.MATH)
    for module in (kernels, attention_kernels):
        monkeypatch.setattr(module, "MATH_ROWS", ROWS)


def seen(num_queries: int, *, window: int | None) -> Tensor:
    last = KEYS - num_queries
    shown = torch.ones(num_queries, KEYS, dtype=torch.bool).tril(last)
    return shown if window is None else shown.triu(last + 1 - window)


def expected(query: Tensor, key: Tensor, value: Tensor, *, window: int | None) -> Tensor:
    key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    scores = (query @ key.mT * SCALE).masked_fill(~seen(query.shape[2], window=window), -torch.inf)
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("chosen", [flash, efficient, math])
def test_every_kernel_computes_a_softmax_of_products(
    chosen: Callable[[pytest.MonkeyPatch], object], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(monkeypatch)
    for (heads, kv_heads), (width, value_width), length in product(HEADS, DIMS, LENGTHS):
        generator = torch.Generator().manual_seed(length)
        shapes = ((heads, length, width), (kv_heads, KEYS, width), (kv_heads, KEYS, value_width))
        inputs = leaves(*(torch.randn(2, *shape, generator=generator) for shape in shapes))
        query, key, value = inputs
        bias = None if window is None else Windows().bias(query, num_keys=KEYS, window=window)
        out = lower_right_attention(query, key=key, value=value, scale=SCALE, bias=bias)
        grad_out = torch.randn(out.shape, generator=generator)
        found = (out, *torch.autograd.grad(out, inputs, grad_out))
        wide = leaves(*(one.double() for one in inputs))
        wanted_out = expected(*wide, window=window)
        wanted = (wanted_out, *torch.autograd.grad(wanted_out, wide, grad_out.double()))
        errors = [relative_error(one.double(), other) for one, other in zip(found, wanted, strict=True)]
        assert max(errors) < 1e-5, (heads, kv_heads, width, value_width, length, errors)


@pytest.mark.parametrize("chosen", [flash, efficient, math])
@pytest.mark.parametrize("window", [1, 3, 4])
def test_a_long_sequence_under_a_window_is_computed_some_queries_at_a_time(
    chosen: Callable[[pytest.MonkeyPatch], object], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and gradients, sinks included, with every kernel; no mask is as long as the sequence."""
    chosen(monkeypatch)
    monkeypatch.setattr(attention_kernels, "_WINDOW_ROWS", 3)
    for num_queries, (heads, kv_heads) in product((KEYS, KEYS - 2), HEADS):
        generator = torch.Generator().manual_seed(num_queries)
        shapes = ((heads, num_queries, 16), (kv_heads, KEYS, 16), (kv_heads, KEYS, 16))
        sinks = torch.randn(heads, generator=generator)
        inputs = leaves(*(torch.randn(2, *shape, generator=generator) for shape in shapes), sinks)
        query, key, value, own_sinks = inputs
        windows = Windows()
        out = window_attention(
            query, key=key, value=value, scale=SCALE, window=window, windows=windows, sinks=own_sinks
        )
        grad_out = torch.randn(out.shape, generator=generator)
        found = (out, *torch.autograd.grad(out, inputs, grad_out))
        wide = leaves(*(one.double() for one in inputs))
        wanted_out = with_one_more_key(*wide, window=window)
        wanted = (wanted_out, *torch.autograd.grad(wanted_out, wide, grad_out.double()))
        errors = [relative_error(one.double(), other) for one, other in zip(found, wanted, strict=True)]
        assert max(errors) < 1e-5, (num_queries, heads, kv_heads, errors)
        (mask,) = windows._biases.values()
        assert mask.shape[0] == (ROWS if chosen is math else max(3, window)) < KEYS


def with_one_more_key(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, window: int) -> Tensor:
    """The softmax of products and of a score for a key without a value."""
    key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    scores = (query @ key.mT * SCALE).masked_fill(~seen(query.shape[2], window=window), -torch.inf)
    more = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, more), -1).softmax(-1)[..., :-1] @ value


@pytest.mark.parametrize(
    ("length", "window", "rows"),
    [(4095, 512, None), (4096, 512, 1024), (16_383, 4096, None), (16_384, 4096, 4096)],
)
def test_short_sequences_are_computed_at_once(length: int, window: int, rows: int | None) -> None:
    assert attention_kernels.window_rows(window, num_queries=length) == rows


def test_grouped_heads_are_repeated_while_the_kernel_runs_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = efficient(monkeypatch)
    query, key, value = leaves(*(torch.randn(1, heads, KEYS, 16) for heads in (8, 2, 2)))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        plain_attention(query, key=key, value=value, scale=SCALE, windows=Windows())
    assert kernel.calls == [torch.Size([1, 8, KEYS, 16])]
    shapes = [tuple(one.shape) for one in kept if one.dim() > 2]
    assert shapes == [(1, 8, KEYS, 16), (1, 2, KEYS, 16), (1, 2, KEYS, 16), (1, 8, KEYS, 16), (1, 8, KEYS)]


@pytest.mark.parametrize(
    ("kv_heads", "window", "taken"), [(4, None, [False]), (4, 3, [True]), (2, None, []), (2, 3, [])]
)
def test_cudnn_takes_heads_that_are_not_grouped(
    kv_heads: int, window: int | None, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    prefers_cudnn = plain.prefers_cudnn

    def prefers(query: Tensor, *, value: Tensor, has_mask: bool) -> bool:
        with monkeypatch.context() as patches:
            patches.setattr(plain, "_choice", lambda *arguments: asked.append(arguments[-1]) or True)
            return prefers_cudnn(query.to("meta"), value=value.to("meta"), has_mask=has_mask)

    efficient(monkeypatch)
    monkeypatch.setattr(plain, "prefers_cudnn", prefers)
    monkeypatch.setattr(plain, "sdpa_kernel", lambda _: nullcontext())
    query, key, value = (torch.randn(2, heads, KEYS, 16) for heads in (4, kv_heads, kv_heads))
    out = plain_attention(query, key=key, value=value, scale=SCALE, windows=Windows(), window=window)
    assert asked == taken
    assert relative_error(out, expected(query, key, value, window=window)) < 1e-5


def errors_over_cp(rank: int, cp: int, kernel: str) -> float:
    """The largest error of output and gradients of rings and all-gather, against one process."""
    patches, largest = pytest.MonkeyPatch(), 0.0
    {"efficient": efficient, "math": math}[kernel](patches)
    cases: Sequence[tuple[Kind, Balance]] = [*product(("ring", "allgather"), ("headtail", "none"))]
    for kind, balance in cases:
        name = register_attention(kind, group=dist.group.WORLD, balance=balance, name="test")
        *tensors, grad_out = random_inputs(num_kv_heads=2, dtype=torch.float32)
        whole = leaves(*(tensor.double() for tensor in tensors))
        out = reference_attention(whole[0], key=whole[1], value=whole[2])
        wanted = [out.detach(), *torch.autograd.grad(out, whole, grad_out.double())]
        parts = [
            shard(one, tensor_dim=2, parts=cp, index=rank, balance=balance) for one in (*tensors, grad_out)
        ]
        inputs = leaves(*parts[:3])
        out = attend(name, query=inputs[0], key=inputs[1], value=inputs[2])
        found = [out.detach(), *torch.autograd.grad(out, inputs, parts[3])]
        for one, other in zip(found, wanted, strict=True):
            own = shard(other, tensor_dim=2, parts=cp, index=rank, balance=balance)
            largest = max(largest, relative_error(one.double(), own))
    patches.undo()
    return largest


@pytest.mark.parametrize("kernel", ["efficient", "math"])
def test_context_parallelism_by_every_kernel_is_one_process(kernel: str) -> None:
    assert max(run_ranks(errors_over_cp, 2, kernel)) < 1e-5


@pytest.mark.parametrize(
    ("device", "call", "kernel"),
    [
        ("cpu", AttentionCall(DType("float32"), 64, 64), Kernel.FLASH),
        ("cpu", AttentionCall(DType("float64"), 192, 128, has_mask=True), Kernel.FLASH),
        ("cuda", AttentionCall(DType("bfloat16"), 128, 128), Kernel.FLASH),
        ("cuda", AttentionCall(DType("bfloat16"), 100, 100), Kernel.FLASH),
        ("cuda", AttentionCall(DType("bfloat16"), 128, 128, has_mask=True), Kernel.EFFICIENT),
        ("cuda", AttentionCall(DType("float16"), 512, 512), Kernel.EFFICIENT),
        ("cuda", AttentionCall(DType("bfloat16"), 192, 128), Kernel.EFFICIENT),
        ("cuda", AttentionCall(DType("float32"), 128, 128), Kernel.EFFICIENT),
        ("cuda", AttentionCall(DType("float64"), 128, 128), Kernel.MATH),
        ("cpu", AttentionCall(DType("float32"), 64, 64, has_softcap=True), Kernel.MATH),
        ("cuda", AttentionCall(DType("bfloat16"), 256, 256, has_mask=True, has_softcap=True), Kernel.MATH),
        ("mps", AttentionCall(DType("float32"), 64, 64), Kernel.MATH),
    ],
)
def test_the_table_names_the_kernel_of_a_call(device: str, call: AttentionCall, kernel: Kernel) -> None:
    assert kernel_of(call, device=device) is kernel
