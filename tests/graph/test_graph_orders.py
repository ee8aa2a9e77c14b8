"""Orders of ops that the verifier accepts train equal: all of them by `python -m tests.graph.orders`."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.graph.verify import verify
from tests.graph.orders import PLANS, Plan, orders, tally, trained
from tests.parity.cases import Case

UNORDERED = ("schedule.step", "log", "replicas.compare", "evaluate", "profile.start", "profile.stop")
"""The ops of a step that only observe it or prepare the next one. Each other op has one place."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_every_op_of_a_step_that_computes_has_one_place(name: str, workspace: Path) -> None:
    found = [what for what, other in orders(PLANS[name].graph(workspace)) if not verify(other)]
    steps = [what for what in found if not what.startswith("setup")]
    assert steps
    assert [what for what in steps if not any(f": {one} " in what for one in UNORDERED)] == []


@pytest.mark.slow
def test_steps_in_accepted_orders_train_equal(workspace: Path) -> None:
    found = tally(
        Plan(Case("1", "", micro_batch=4)).graph(workspace), workspace, parts=("step", "micro step")
    )
    assert found.accepted > 0
    assert found.unequal == ()


def test_a_log_before_the_step_of_the_optimizer_keeps_the_count_of_collectives(
    workspace: Path, tmp_path: Path
) -> None:
    """Both ops end a count of collectives of their own; a step's was lost where the log came first."""
    graph = PLANS["FSDP + TP"].graph(workspace)
    before = next(other for what, other in orders(graph) if what == "step: log from 7 to 5")
    assert verify(before) == ()
    assert trained(before, workspace, tmp_path / "before") == trained(graph, workspace, tmp_path / "own")
