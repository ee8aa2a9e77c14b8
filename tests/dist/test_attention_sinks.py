"""Learned sinks of attention, against transformers' own code of gpt-oss in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from planc.runtime.torch.attention.blocks import lower_right_attention
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.attention.register import Kind, register_attention
from planc.runtime.torch.attention.sharding import Balance, shard
from tests.dist.pool import run_ranks
from tests.dist.test_attention import BALANCES, KINDS, attend, leaves, plain, relative_error, worst
from tests.dist.test_attention_kernels import KEYS, efficient, flash, math, seen

HEADS, LENGTH, WIDTH = 4, 16, 8
CASES: tuple[tuple[Kind, int | None], ...] = tuple(product(KINDS, (None, 5)))
"""Kinds and windows."""


def drawn(*, kv_heads: int, queries: int = LENGTH, keys: int = LENGTH) -> list[Tensor]:
    """Query, key, value, sinks that matter, and the gradient of the output."""
    generator = torch.Generator().manual_seed(kv_heads)
    shapes = ((2, HEADS, queries), (2, kv_heads, keys), (2, kv_heads, keys), (2, HEADS, queries))
    query, key, value, grad = (torch.randn(*one, WIDTH, generator=generator).double() for one in shapes)
    return [query, key, value, torch.tensor([-3.0, 0.5, 2.0, 6.0], dtype=torch.float64), grad]


def by_transformers(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *, hidden: Tensor) -> Tensor:
    """The attention of gpt-oss by the code of its class, [B, H, S, D]."""
    groups = query.shape[1] // key.shape[1]
    module = SimpleNamespace(num_key_value_groups=groups, sinks=sinks, training=True)
    mask = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill(hidden, -1e30)
    out: Tensor = eager_attention_forward(module, query, key, value, mask, scaling=0.3)[0]
    return out.transpose(1, 2)


def hidden_by(window: int | None) -> Tensor:
    shown = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return ~(shown if window is None else shown.triu(1 - window))


def errors(inputs: list[Tensor], out: Tensor, wanted: list[Tensor], grad: Tensor) -> list[float]:
    found = (out, *torch.autograd.grad(out, inputs, grad))
    return [relative_error(one.double(), other) for one, other in zip(found, wanted, strict=True)]


def wanted_of(tensors: list[Tensor], *, hidden: Tensor) -> list[Tensor]:
    """The output and the gradients of query, key, value and sinks by transformers."""
    *given, grad = tensors
    inputs = leaves(*given)
    out = by_transformers(*inputs, hidden=hidden)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("chosen", [flash, efficient, math])
def test_sinks_after_every_kernel_are_those_of_transformers(
    chosen: Callable[[pytest.MonkeyPatch], object], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(monkeypatch)
    for kv_heads, length in product((4, 2, 1), (5, KEYS)):
        tensors = drawn(kv_heads=kv_heads, queries=length, keys=KEYS)
        hidden = ~seen(length, window=window)
        # CUDA's kernel takes float32.
        *given, grad = (one.float() for one in tensors)
        inputs = leaves(*given)
        bias = None if window is None else torch.zeros(length, KEYS).masked_fill(hidden, -torch.inf)
        query, key, value, sinks = inputs
        out = lower_right_attention(query, key=key, value=value, scale=0.3, bias=bias, sinks=sinks)
        assert max(errors(inputs, out, wanted_of(tensors, hidden=hidden), grad)) < 1e-5


@pytest.mark.parametrize("window", [None, 5])
def test_sinks_in_float64_are_exact(window: int | None) -> None:
    for kv_heads in (4, 1):
        *given, grad = tensors = drawn(kv_heads=kv_heads)
        query, key, value, sinks = inputs = leaves(*given)
        out = attend(
            plain(), query=query, key=key, value=value, s_aux=sinks, sliding_window=window, scaling=0.3
        )
        assert max(errors(inputs, out, wanted_of(tensors, hidden=hidden_by(window)), grad)) < 1e-13


def test_sinks_in_bfloat16_stay_near_float64() -> None:
    *given, grad = (one.bfloat16() for one in drawn(kv_heads=2))
    query, key, value, sinks = inputs = leaves(*given)
    out = attend(plain(), query=query, key=key, value=value, s_aux=sinks, scaling=0.3)
    assert out.dtype == torch.bfloat16
    wanted = wanted_of([one.double() for one in (*given, grad)], hidden=hidden_by(None))
    assert max(errors(inputs, out, wanted, grad)) < 2**-6


def test_every_document_has_the_sink_to_itself() -> None:
    *given, grad = tensors = drawn(kv_heads=2)
    places = torch.tensor([[*range(6), *range(10)], [*range(16)]])
    documents = Documents()
    documents.begin(places.numpy(), on_device=places)
    name = register_attention("plain", group=None, balance="none", name="test", documents=documents)
    query, key, value, sinks = inputs = leaves(*given)
    out = attend(name, query=query, key=key, value=value, s_aux=sinks, scaling=0.3)
    row = torch.arange(LENGTH)
    hidden = hidden_by(None) | ((row >= 6)[:, None] & (row < 6)) & (torch.arange(2) == 0)[:, None, None]
    assert max(errors(inputs, out, wanted_of(tensors, hidden=hidden[:, None]), grad)) < 1e-13


def cp_errors(rank: int, cp: int) -> dict[str, float]:
    """Errors of a rank's part of the output and gradients, and of the ranks' sum of the sinks' gradients."""
    found = {}
    for (kind, window), balance, kv_heads in product(CASES, BALANCES, (4, 1)):
        *given, sinks, grad = tensors = drawn(kv_heads=kv_heads)
        wanted = wanted_of(tensors, hidden=hidden_by(window))

        def own(one: Tensor, balance: Balance = balance) -> Tensor:
            return shard(one, tensor_dim=2, parts=cp, index=rank, balance=balance)

        name = register_attention(kind, group=dist.group.WORLD, balance=balance, name="test")
        inputs = leaves(*map(own, given), sinks)
        out = attend(
            name,
            query=inputs[0],
            key=inputs[1],
            value=inputs[2],
            s_aux=inputs[3],
            sliding_window=window,
            scaling=0.3,
        )
        *gradients, of_sinks = torch.autograd.grad(out, inputs, own(grad))
        dist.all_reduce(of_sinks)
        pairs = zip((out, *gradients), map(own, wanted[:4]), strict=True)
        case = f"{kind} {window} {balance} {kv_heads}"
        found[case] = max(relative_error(one, other) for one, other in pairs)
        found[f"{case} sinks"] = relative_error(of_sinks, wanted[4])
    return found


def test_ranks_over_cp_have_parts_of_the_gradient_of_sinks() -> None:
    found = worst(run_ranks(cp_errors, 2))
    assert {case: error for case, error in found.items() if not error < 1e-12} == {}


def test_sinks_of_other_heads_are_refused() -> None:
    query = torch.zeros(1, 2, 4, 8)
    with pytest.raises(ValueError, match=r"sinks \[4\] are not one for each of 2 heads"):
        attend(plain(), query=query, key=query, value=query, s_aux=nn.Parameter(torch.zeros(4)))
