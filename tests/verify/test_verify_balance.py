"""Balance of experts is verified, by a definition apart from the runtime's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.run import Run
from planc.runtime.torch.training.balance import Balance, _Routes
from planc.source import SourceFile
from planc.verify.outcome import Item
from planc.verify.verify import compared, prepare, run_plan, verify
from planc.vocab import MeshDim
from tests.parity.cases import Case, plan_text

BALANCE = "balance {{\n  loss = switch(coefficient = 0.5, over = {over}{more})\n  z_loss = 0.1\n}}\n"
EXPERTS = "expert_parallel on dp_shard {\n  size = 2\n  auto\n}\n"


def routes_of(state: State) -> _Routes:
    """The routes of the last forward, which are not summed yet."""
    routes = state[Balance].last
    assert routes is not None
    return routes


def counts_of_own_ranks(state: State, op: Op, position: Position) -> None:
    """Each rank balances the tokens that it has itself."""
    if isinstance(op, ops.SumRoutes):
        routes = routes_of(state)
        finish = routes.finish
        routes.finish = lambda mesh, over: finish(mesh, replace(over, over=()))  # type: ignore[method-assign]


def loss_multiplied_by_tp(state: State, op: Op, position: Position) -> None:
    """Each rank of tp adds the whole loss, and all are summed."""
    if isinstance(op, ops.SumRoutes):
        routes = routes_of(state)
        assert routes.op.loss is not None
        coefficient = routes.op.loss.coefficient * state[Run].graph.size(MeshDim.TP)
        routes.op = replace(routes.op, loss=replace(routes.op.loss, coefficient=coefficient))


def routes_counted_twice(state: State, op: Op, position: Position) -> None:
    """Each token counts in the forward, and again in the forward that backward repeats."""
    if isinstance(op, ops.SumRoutes):
        routes = routes_of(state)
        routes.all_chosen.mul_(2)
        for layer in routes.layers.values():
            layer.probabilities.mul_(2)


def biases_moved_the_other_way(state: State, op: Op, position: Position) -> None:
    """Those of experts with many tokens rise."""
    if isinstance(op, ops.MoveBiases):
        for load in state[Balance].loads.values():
            load.neg_()


MOE = "qwen3-moe"
CP2 = Case("CP2", "", {"cp": 2}, model=MOE)
PLANTED = (
    (counts_of_own_ranks, CP2, "sequence", {Item.BALANCE, Item.GRADIENTS}),
    (
        loss_multiplied_by_tp,
        Case("TP2", "", {"tp": 2}, model=MOE, tensor_parallel="auto"),
        "micro_batch",
        {Item.BALANCE, Item.GRADIENTS},
    ),
    (
        routes_counted_twice,
        Case("DP2", "", {"dp_shard": 2}, model=MOE, recomputes=True),
        "sequence",
        {Item.GRADIENTS},
    ),
)
"""Bugs of the runtime, a plan that has what each breaks, and what verification must show."""


def balanced(case: Case, *, over: str, more: str = "", blocks: str = "") -> SourceFile:
    return SourceFile("case.plan", plan_text(case) + BALANCE.format(over=over, more=more) + blocks)


@pytest.mark.parametrize(
    ("fault", "case", "over", "items"),
    [
        pytest.param(*one, id=one[0].__name__, marks=() if number == 0 else pytest.mark.slow)
        for number, one in enumerate(PLANTED)
    ],
)
def test_a_planted_bug_shows(
    fault: Callable[[State, Op, Position], None],
    case: Case,
    over: str,
    items: set[Item],
    workspace: Path,
    tmp_path: Path,
) -> None:
    plan = check_source(balanced(case, over=over), base=workspace)
    assert plan.bound is not None and plan.graph is not None, [str(one) for one in plan.diagnostics]
    shrunk, training = prepare(plan.bound, plan.graph, base=workspace, folder=tmp_path)
    records = run_plan(shrunk.graph, folder=tmp_path, before_op=fault)
    assert items <= {one.item for one in compared(records, training) if not one.ok}


DEEPSEEK = Path(__file__).parents[2] / "plans" / "models" / "tiny-deepseek-v3"
BIAS = "balance {\n  loss = bias(update = 0.01)\n}\n"


def biased(mesh: dict[str, int], *blocks: str) -> SourceFile:
    case = Case("biased", "", mesh, model=str(DEEPSEEK), micro_batch=2, tensor_parallel="auto")
    return SourceFile("case.plan", "".join((plan_text(case), BIAS, *blocks)))


@pytest.mark.slow
def test_a_planted_bug_of_biases_shows(workspace: Path, tmp_path: Path) -> None:
    plan = check_source(biased({"dp_shard": 2}), base=workspace)
    assert plan.bound is not None and plan.graph is not None, plan.diagnostics
    shrunk, training = prepare(plan.bound, plan.graph, base=workspace, folder=tmp_path)
    records = run_plan(shrunk.graph, folder=tmp_path, before_op=biases_moved_the_other_way)
    assert Item.PARAMETERS in {verdict.item for verdict in compared(records, training) if not verdict.ok}


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [(), (EXPERTS,)], ids=["whole", "experts on ranks"])
@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"pp": 2, "dp_shard": 2}], ids=str)
def test_moved_biases_are_verified(mesh: dict[str, int], blocks: tuple[str, ...], workspace: Path) -> None:
    plan = check_source(biased(mesh, *blocks), base=workspace)
    assert plan.bound is not None and plan.graph is not None, plan.diagnostics
    report = verify(plan.bound, plan.graph, base=workspace)
    assert [verdict for verdict in report.verdicts if not verdict.ok] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "over", "more", "blocks"),
    [
        ({"dp_shard": 2, "tp": 2}, "step", "", ""),
        ({"dp_shard": 2, "cp": 2}, "micro_batch", ", layers = pooled", ""),
        ({"pp": 2, "dp_shard": 2}, "sequence", "", ""),
        ({"dp_shard": 2, "cp": 2}, "sequence", "", EXPERTS),
        ({"dp_shard": 2, "tp": 2}, "micro_batch", "", EXPERTS),
    ],
)
def test_balanced_plans_are_verified(
    mesh: dict[str, int], over: str, more: str, blocks: str, workspace: Path
) -> None:
    """Also after a resume on other meshes, where a step that is one set must stay one micro-batch."""
    case = Case("balanced", "", mesh, model=MOE, micro_batch=4, tensor_parallel="auto")
    plan = check_source(balanced(case, over=over, more=more, blocks=blocks), base=workspace)
    assert plan.bound is not None and plan.graph is not None, [str(one) for one in plan.diagnostics]
    report = verify(plan.bound, plan.graph, base=workspace)
    assert [one for one in report.verdicts if not one.ok] == []
    assert Item.BALANCE in {one.item for one in report.verdicts}
