"""Attention with a soft cap, against transformers' own code of Gemma 2 in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import softmax
from transformers.models.gemma2 import modeling_gemma2

from planc.devices import attention_kernels
from planc.runtime.torch.attention import kernels
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.attention.register import Kind, register_attention
from planc.runtime.torch.attention.sharding import Balance, shard
from tests.dist.largest_tensor import LargestTensor
from tests.dist.pool import run_ranks
from tests.dist.test_attention import BALANCES, KINDS, Errors, attend, leaves, relative_error, worst

HEADS, LENGTH, WIDTH, CAP = 4, 24, 8, 1.5
ROWS = 5
"""The queries that are computed at a time here: neither the sequence nor a rank's part is a multiple."""
LENGTHS = ((5, 1, 11, 7), (3, 21))
"""Documents of each sequence."""
CALL = {"scaling": 0.7, "softcap": CAP}


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    in_tiles(monkeypatch)


def in_tiles(patches: pytest.MonkeyPatch) -> None:
    for module in (kernels, attention_kernels):
        patches.setattr(module, "MATH_ROWS", ROWS)


def drawn(*, kv_heads: int, length: int = LENGTH) -> list[Tensor]:
    """Query, key, value and the gradient of the output. Half of the scores are above the cap."""
    generator = torch.Generator().manual_seed(kv_heads)
    shapes = ((2, HEADS, length), (2, kv_heads, length), (2, kv_heads, length), (2, HEADS, length))
    query, key, value, grad = (torch.randn(*one, WIDTH, generator=generator).double() for one in shapes)
    return [query, key, value, grad]


def by_transformers(query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor) -> Tensor:
    """The attention of Gemma 2 by the code of its class, [B, H, S, D], with its softmax in float64."""
    groups = query.shape[1] // key.shape[1]
    module = SimpleNamespace(num_key_value_groups=groups, training=True, head_dim=WIDTH)
    mask = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill(hidden, -torch.inf)
    with patch.object(
        modeling_gemma2.nn.functional, "softmax", lambda scores, dim, dtype: softmax(scores, dim)
    ):
        out = modeling_gemma2.eager_attention_forward(module, query, key, value, mask, **CALL)[0]
    return out.transpose(1, 2)


def hidden_by(window: int | None, *, documents: bool = False) -> Tensor:
    """[B or 1, 1, S, S]: what queries don't see."""
    shown = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    shown = shown if window is None else shown.triu(1 - window)
    if not documents:
        return ~shown[None, None]
    numbers = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in LENGTHS])
    return ~(shown & (numbers[:, :, None] == numbers[:, None, :]))[:, None]


def wanted_of(tensors: list[Tensor], *, hidden: Tensor) -> list[Tensor]:
    """The output and the gradients of query, key and value by transformers."""
    *given, grad = tensors
    inputs = leaves(*given)
    out = by_transformers(*inputs, hidden=hidden)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def named(kind: Kind, balance: Balance, *, documents: bool) -> str:
    own = Documents() if documents else None
    if own is not None:
        places = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in LENGTHS])
        own.begin(places.numpy(), on_device=places)
    group = None if kind == "plain" else dist.group.WORLD
    return register_attention(kind, group=group, balance=balance, name="test", documents=own)


def largest_error(
    name: str,
    tensors: list[Tensor],
    wanted: list[Tensor],
    *,
    window: int | None,
    own: Callable[[Tensor], Tensor],
) -> float:
    *given, grad = map(own, tensors)
    query, key, value = inputs = leaves(*given)
    out = attend(name, query=query, key=key, value=value, sliding_window=window, **CALL)
    found = (out, *torch.autograd.grad(out, inputs, grad))
    return max(relative_error(one.double(), own(other)) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("window", [None, 3, 9])
def test_a_soft_cap_in_float64_is_exact(window: int | None, documents: bool) -> None:
    for kv_heads in (4, 2, 1):
        tensors = drawn(kv_heads=kv_heads)
        wanted = wanted_of(tensors, hidden=hidden_by(window, documents=documents))
        name = named("plain", "none", documents=documents)
        assert largest_error(name, tensors, wanted, window=window, own=lambda one: one) < 1e-12


def test_a_soft_cap_in_bfloat16_stays_near_float64() -> None:
    tensors = [one.bfloat16() for one in drawn(kv_heads=2)]
    wanted = wanted_of([one.double() for one in tensors], hidden=hidden_by(3))
    name = named("plain", "none", documents=False)
    assert largest_error(name, tensors, wanted, window=3, own=lambda one: one) < 2**-6


def test_what_is_computed_without_the_cap_differs() -> None:
    query, key, value, _ = drawn(kv_heads=2)
    call = partial(attend, named("plain", "none", documents=False), query=query, key=key, value=value)
    assert relative_error(call(**CALL), call(scaling=CALL["scaling"])) > 0.1


def test_no_tensor_holds_a_number_for_every_pair_of_tokens() -> None:
    for window in (None, 9):
        query, key, value, grad = drawn(kv_heads=HEADS, length=32 * ROWS)
        inputs = leaves(query, key, value)
        name = named("plain", "none", documents=False)
        with LargestTensor() as largest:
            out = attend(name, query=inputs[0], key=inputs[1], value=inputs[2], sliding_window=window, **CALL)
            torch.autograd.grad(out, inputs, grad)
        assert largest.num_elements <= max(2 * HEADS * ROWS * 32 * ROWS, query.numel())


QUICK = tuple(("headtail", 2, kind, window, False) for kind in KINDS for window in (None, 9))
EVERY = tuple(product(BALANCES, (4, 1), KINDS, (None, 9), (False, True)))


def cp_errors(rank: int, cp: int, cases: tuple[tuple[Balance, int, Kind, int | None, bool], ...]) -> Errors:
    """Errors of a rank's part of the output and gradients."""
    patches, found = pytest.MonkeyPatch(), {}
    in_tiles(patches)
    for balance, kv_heads, kind, window, documents in cases:
        tensors = drawn(kv_heads=kv_heads)
        wanted = wanted_of(tensors, hidden=hidden_by(window, documents=documents))
        own = partial(shard, tensor_dim=2, parts=cp, index=rank, balance=balance)
        name = named(kind, balance, documents=documents)
        case = f"{kind} {balance} {kv_heads} {window} {documents}"
        found[case] = largest_error(name, tensors, wanted, window=window, own=own)
    patches.undo()
    return found


@pytest.mark.parametrize(
    "cases", [QUICK, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["quick", "every"]
)
def test_every_kind_over_cp_caps_as_one_process(cases: object) -> None:
    found = worst(run_ranks(cp_errors, 2, cases))
    assert {case: error for case, error in found.items() if not error < 1e-12} == {}
