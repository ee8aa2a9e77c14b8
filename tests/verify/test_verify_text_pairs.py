"""`planc verify` trains classifiers of two texts on pairs, with types: types that are left out show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.state import LocalBatch
from planc.source import SourceFile
from planc.verify.outcome import Item
from planc.verify.verify import verify
from tests.plans import PLANS, encoder_plan

PLAN = encoder_plan(
    "tiny-bert-classifier",
    task="sequence_classification(labels = 3)",
    source='labeled("rows.jsonl", pair = "second")',
)


def types_left_out(state: State, op: Op, position: Position) -> None:
    """The model takes the second text for a part of the first."""
    if isinstance(op, ops.Forward):
        state.put(replace(state[LocalBatch], token_types=None))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, types_left_out])
def test_types_that_are_left_out_show(fault: object, tmp_path: Path) -> None:
    settings = [SourceFile("--set", "mesh.tp=1")]
    plan = check_source(SourceFile("case.plan", PLAN), base=PLANS, settings=settings)
    assert plan.bound is not None and plan.graph is not None, plan.diagnostics
    report = verify(plan.bound, plan.graph, base=PLANS, before_op=fault)  # type: ignore[arg-type]
    wrong = {verdict.item for verdict in report.verdicts if not verdict.ok}
    assert (Item.GRADIENTS in wrong) is (fault is not None) and bool(wrong) is (fault is not None)
