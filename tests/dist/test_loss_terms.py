"""Cross entropy with label smoothing and z-loss is torch's definition: values, gradients, and on meshes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from planc.graph.ops import BuildLoss
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.torch.training.loss_terms import LossWithTerms, build_loss
from tests.parity.cases import ALL_8, PP2_DP2, TP2_DP2, Case
from tests.parity.compare import parity
from tests.parity.reference import Training, train_reference

SMOOTHING, Z_LOSS = 0.1, 1e-2
TERMS = (f"train.loss=cross_entropy(label_smoothing = {SMOOTHING}, z_loss = {Z_LOSS})",)
CASES = (
    Case("1", "accumulate", micro_batch=2, settings=TERMS),
    Case("TP2", "257 rows", {"tp": 2}, model="llama-uneven", settings=TERMS),
    Case("TP2·DP2", "chunks", TP2_DP2, settings=(*TERMS, "train.loss_chunks=4")),
    Case("PP2·DP2", "", PP2_DP2, micro_batch=1, settings=TERMS),
    Case("DP2·CP2·TP2", "", ALL_8, settings=TERMS),
)


def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    """Of log-probabilities of the whole vocabulary, in float64."""
    logs = logits.double().log_softmax(-1)
    of_labels = logs[torch.arange(len(labels)), labels]
    values = -(1 - SMOOTHING) * of_labels - SMOOTHING * logs.mean(-1)
    return values + Z_LOSS * logits.double().logsumexp(-1) ** 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_values_and_gradients_are_the_definitions(dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(48, 301, generator=torch.Generator().manual_seed(1))).to(dtype)
    labels = torch.arange(48) * 7 % 301
    is_label = torch.arange(48) % 5 != 0
    loss = build_loss(None, BuildLoss(label_smoothing=SMOOTHING, z_loss=Z_LOSS))  # type: ignore[arg-type]
    assert isinstance(loss, LossWithTerms)
    own, exact = (logits.clone().requires_grad_() for _ in range(2))
    values = loss.of_parts(own, labels.where(is_label, IGNORED_LABEL), group=None, vocab_size=301)
    expected = by_hand(exact, labels).where(is_label, 0)
    smoothed = cross_entropy(logits.double(), labels, reduction="none", label_smoothing=SMOOTHING)
    of_z = Z_LOSS * logits.double().logsumexp(-1) ** 2
    assert torch.allclose(expected, (smoothed + of_z).where(is_label, 0), rtol=1e-12)
    limit = 1e-12 if dtype == torch.float64 else 1e-6
    assert torch.allclose(values.double(), expected, rtol=limit, atol=limit)
    above = torch.rand(48, generator=torch.Generator().manual_seed(2))
    values.backward(above.to(values.dtype))  # type: ignore[no-untyped-call]
    expected.backward(above.double())  # type: ignore[no-untyped-call]
    assert own.grad is not None and exact.grad is not None and own.grad.dtype == dtype
    limit = 1e-2 if dtype == torch.bfloat16 else limit
    assert torch.allclose(own.grad.double(), exact.grad.double(), rtol=limit, atol=limit * 0.1)
    assert not own.grad[~is_label].any()


@pytest.fixture(scope="module")
def reference(workspace: Path) -> Callable[[str], Training]:
    return cache(lambda model: train_reference(model, workspace=workspace, value=by_hand))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mesh_trains_as_one_process(
    case: Case, workspace: Path, reference: Callable[[str], Training]
) -> None:
    assert parity(case, workspace=workspace, reference=reference(case.model)).problems == ()
