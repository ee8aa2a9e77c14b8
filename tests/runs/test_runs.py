"""Plans in which features meet: that all that can meet do, and that the runs train as one process."""

from __future__ import annotations

from itertools import combinations, islice, product
from pathlib import Path

import pytest

from tests.runs.plans import AXES, base_row, on_one_rank, plan_text, rows, world_size
from tests.runs.whole import Workspace


def test_all_pairs_meet_that_are_not_refused_together() -> None:
    refused = {("mesh", "cp 2 ring"), ("compile", "layers")}
    met: set[tuple[tuple[str, str], tuple[str, str]]] = set()
    for row, num_new in rows(lambda row: not refused <= {*row.items()}, seed=0):
        pairs = {*combinations(row.items(), 2)}
        assert len(pairs - met) == num_new > 0
        met |= pairs
    axes = {axis: [(axis, value) for value in values] for axis, values in AXES.items()}
    wanted = {pair for one, other in combinations(axes.values(), 2) for pair in product(one, other)}
    assert wanted - met == {(("mesh", "cp 2 ring"), ("compile", "layers"))}


def test_one_rank_trains_the_same_rows() -> None:
    row = {**base_row(), "mesh": "dp_shard 2, tp 2"}
    alone = on_one_rank(row)
    assert (world_size(row), world_size(alone)) == (4, 1)
    assert "micro_batch = 4" in plan_text(row)
    assert "micro_batch = 8" in plan_text(alone)


def test_every_kind_of_model_and_loss_can_be_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace", Path("plans/models"))
    rows = [{**base_row(), axis: value} for axis in ("model", "loss") for value in AXES[axis]]
    assert [row for row in rows if not workspace.accepts(row)] == []


@pytest.mark.slow
def test_whole_runs_train_as_one_process(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace", Path("plans/models"))
    problems = [workspace.problem(row) for row, _ in islice(rows(workspace.accepts, seed=1), 10)]
    assert problems == [""] * 10
