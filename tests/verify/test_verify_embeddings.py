"""`planc verify` trains embedding models on pairs: what a loss of vectors can get wrong shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from planc.api import check_source
from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.state import LocalBatch
from planc.runtime.torch.training import contrastive
from planc.source import SourceFile
from planc.verify.losses import LOWEST_TEMPERATURE
from planc.verify.outcome import Item
from planc.verify.verify import verify
from tests.plans import PLANS, encoder_plan

PLAN = (
    encoder_plan("tiny-bert", task="embedding()\n  dropout = false", source='matched("pairs.jsonl")')
    .replace('"bert.encoder', '"encoder')
    .replace("train {", "train {\n  loss = contrastive(group = 2)")
    .replace("micro_batch = 1", "micro_batch = 4")
)


def padding_in_the_mean(state: State, op: Op, position: Position) -> None:
    """The mean is of all positions of a sequence."""
    if isinstance(op, ops.Forward):
        batch = state[LocalBatch]
        state.put(replace(batch, lengths=torch.full_like(batch.labels[:, 0], batch.labels.shape[1])))


def temperature_twice(state: State, op: Op, position: Position) -> None:
    """The cosines are divided by the square of the temperature."""
    if isinstance(op, ops.ComputeContrastiveLoss):
        object.__setattr__(op, "temperature", LOWEST_TEMPERATURE**2)


def lengths_of_vectors_kept(state: State, op: Op, position: Position) -> None:
    """Scores are products of vectors of any length."""
    own = vars(torch.nn.functional) | {"normalize": lambda vectors, dim: vectors}
    contrastive.F = SimpleNamespace(**own)  # type: ignore[assignment]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, padding_in_the_mean, temperature_twice, lengths_of_vectors_kept])
def test_what_a_loss_of_vectors_can_get_wrong_shows(fault: object, tmp_path: Path) -> None:
    settings = [SourceFile("--set", "mesh.tp=1")]
    plan = check_source(SourceFile("case.plan", PLAN), base=PLANS, settings=settings)
    assert plan.bound is not None and plan.graph is not None, plan.diagnostics
    report = verify(plan.bound, plan.graph, base=PLANS, before_op=fault)  # type: ignore[arg-type]
    wrong = {verdict.item for verdict in report.verdicts if not verdict.ok}
    assert ({Item.LOSS, Item.GRADIENTS} <= wrong) is (fault is not None)
    assert bool(wrong) is (fault is not None)
