"""Saves by the clock of rank 0: every rank saves the same steps, whatever its own clock says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest

from planc.runtime.checkpoint_format.layout import committed_steps
from planc.runtime.torch.agreement import stopping
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case, make_workspace
from tests.parity.ranks import Record, Task, train_rank

DP = Case("dp", "saves by time", {"dp_shard": 2}, settings=("checkpoint.save_every=80 min",))
PP = Case("pp", "saves by time", {"pp": 2}, settings=("checkpoint.save_every=80 min",))


class Clock:
    """Each look at it is some minutes after the one before."""

    def __init__(self, *, minutes: int) -> None:
        self._looks = count(0, 60 * minutes)
        self.perf_counter = lambda: 0.0

    def monotonic(self) -> float:
        return next(self._looks)


def train_by_clocks(rank: int, world_size: int, task: Task, minutes: Sequence[int]) -> Record:
    with patch.object(stopping, "time", Clock(minutes=minutes[rank])):
        return train_rank(rank, world_size, task)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("by_time"), ["llama"])


@pytest.mark.parametrize("case", [DP, pytest.param(PP, marks=pytest.mark.slow)], ids=lambda case: case.name)
def test_every_rank_saves_by_the_clock_of_rank_0(case: Case, workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(case, workspace=workspace, saves=True)
    run_ranks(train_by_clocks, 2, Task(graph, workspace, tmp_path / "run"), [20, 90], init=False)
    # A look as training begins, one at the question whether it goes on, and one in each of the six steps.
    assert committed_steps(tmp_path / "run" / "checkpoints") == (3, 6)
