"""A run with checkpoints of one of the parity suite's cases."""

from __future__ import annotations

from pathlib import Path

from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.ranks import Record, Task, train_rank


def train_saving(case: Case, *, workspace: Path, run_folder: Path) -> Record:
    """Rank 0's record of a run to the end."""
    task = Task(compile_case(case, workspace=workspace, saves=True), workspace, run_folder)
    records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
    return records[0]
