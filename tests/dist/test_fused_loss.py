"""A compiled loss is PyTorch's cross entropy: its values, its gradient, and one copy of the logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.torch.training.fused_loss import FusedLoss
from tests.parity.cases import TP2_DP2, Case
from tests.parity.compare import parity
from tests.parity.reference import Training, train_reference
from tests.slow import slow_except

SLOW = pytest.mark.slow
COMPILED = ("compile.backend=aot_eager", "compile.loss=true")
CASES = (
    Case("1", settings=COMPILED),
    Case("1", "in chunks", settings=(*COMPILED, "train.loss_chunks=4")),
    Case("TP2", "257 rows", {"tp": 2}, model="llama-uneven", settings=COMPILED),
    Case("TP2·DP2", "in chunks", TP2_DP2, micro_batch=2, settings=(*COMPILED, "train.loss_chunks=4")),
    Case("CP2·DP2", "", {"dp_shard": 2, "cp": 2}, settings=COMPILED),
)


@pytest.fixture(scope="module")
def reference(workspace: Path) -> Callable[[str], Training]:
    return cache(lambda model: train_reference(model, workspace=workspace))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", slow_except(CASES, "TP2 257 rows", name=lambda case: case.name), ids=lambda case: case.name
)
def test_a_mesh_with_a_compiled_loss_trains_as_one_process(
    case: Case, workspace: Path, reference: Callable[[str], Training]
) -> None:
    assert parity(case, workspace=workspace, reference=reference(case.model)).problems == ()


def as_written(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return function


def tokens(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    logits = (3 * torch.randn(48, 301, generator=torch.Generator().manual_seed(1))).to(dtype)
    labels = torch.arange(48) * 7 % 301
    labels[::5] = IGNORED_LABEL
    return logits.requires_grad_(), labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "compile",
    [
        pytest.param(as_written, id="eager"),
        pytest.param(partial(torch.compile, fullgraph=True, dynamic=False), id="inductor", marks=SLOW),
    ],
)
def test_losses_and_gradients_are_those_of_pytorch(dtype: torch.dtype, compile: Callable[..., Any]) -> None:
    (logits, labels), (own, _) = tokens(dtype), tokens(dtype)
    factors = torch.linspace(0.5, 2, len(labels))
    wide = logits.to(torch.promote_types(dtype, torch.float32))
    expected = cross_entropy(wide, labels, reduction="none")
    found = FusedLoss(compile)(own, labels, vocab_size=301)
    (expected * factors).sum().backward()
    (found * factors).sum().backward()
    assert logits.grad is not None and own.grad is not None
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own.grad, logits.grad)
    assert not own.grad[labels == IGNORED_LABEL].any()


def test_a_compiled_loss_makes_nothing_as_large_as_logits_in_float32() -> None:
    logits, labels = tokens(torch.bfloat16)
    calls: list[int] = []

    def kernel(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*arguments: Tensor) -> Tensor:
            calls.append(sum(one.numel() == logits.numel() for one in arguments))
            return function(*arguments)

        return run

    losses = FusedLoss(kernel)(logits, labels, vocab_size=301)
    kept = [one for one in losses.grad_fn.saved_tensors if one.numel() >= logits.numel()]  # type: ignore[union-attr]
    assert [(one.dtype, one.data_ptr()) for one in kept] == [(torch.bfloat16, logits.data_ptr())]
    losses.sum().backward()
    # A kernel forward and one backward, each of which reads the logits.
    assert calls == [1, 1]
