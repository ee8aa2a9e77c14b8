"""Balance of experts is verified, by a definition apart from the runtime's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.training.balance import Balance
from planc.source import SourceFile
from planc.verify.outcome import Item
from planc.verify.verify import compared, prepare, run_plan, verify
from tests.parity.cases import Case, plan_text

BALANCE = "balance {{\n  loss = switch(coefficient = 0.5, over = {over}{more})\n  z_loss = 0.1\n}}\n"


def counts_of_own_ranks(state: State, op: Op, position: Position) -> None:
    """Each rank balances the tokens that it has itself."""
    if isinstance(op, ops.SumRoutes):
        routes = state[Balance].last
        assert routes is not None
        finish = routes.finish
        routes.finish = lambda mesh, over: finish(mesh, replace(over, over=()))  # type: ignore[method-assign]


def balanced(case: Case, *, over: str, more: str = "") -> SourceFile:
    return SourceFile("case.plan", plan_text(case) + BALANCE.format(over=over, more=more))


def test_balance_by_the_counts_of_a_rank_shows(workspace: Path, tmp_path: Path) -> None:
    plan = check_source(
        balanced(Case("CP2", "", {"cp": 2}, model="qwen3-moe"), over="sequence"), base=workspace
    )
    assert plan.bound is not None and plan.graph is not None
    shrunk, training = prepare(plan.bound, plan.graph, base=workspace, folder=tmp_path)
    records = run_plan(shrunk.graph, folder=tmp_path, before_op=counts_of_own_ranks)
    failing = {one.item for one in compared(records, training) if not one.ok}
    assert {Item.BALANCE, Item.GRADIENTS} <= failing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "over", "more"),
    [
        ({"dp_shard": 2, "tp": 2}, "step", ""),
        ({"dp_shard": 2, "cp": 2}, "micro_batch", ", layers = pooled"),
        ({"pp": 2, "dp_shard": 2}, "sequence", ""),
    ],
)
def test_balanced_plans_are_verified(mesh: dict[str, int], over: str, more: str, workspace: Path) -> None:
    """Also after a resume on other meshes, where a step that is one set must stay one micro-batch."""
    case = Case("balanced", "", mesh, model="qwen3-moe", micro_batch=4)
    plan = check_source(balanced(case, over=over, more=more), base=workspace)
    assert plan.bound is not None and plan.graph is not None, [str(one) for one in plan.diagnostics]
    report = verify(plan.bound, plan.graph, base=workspace)
    assert [one for one in report.verdicts if not one.ok] == []
    assert Item.BALANCE in {one.item for one in report.verdicts}
