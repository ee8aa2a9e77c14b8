"""A run on a file system with the answers of NFS: only what belongs to training state may end it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import nfs
from tests.faults.runs import Stage

pytestmark = pytest.mark.skipif(nfs.COMPILER is None, reason="no C compiler: `cc` makes the driver of NFS")


@pytest.mark.slow
def test_a_run_ends_well_though_files_cant_be_deleted_or_written(stage: Stage, tmp_path: Path) -> None:
    rows = nfs.campaign(tmp_path / "nfs", stage=stage, only=("refused", "held"))
    assert [problem for row in rows for problem in row.problems()] == []


@pytest.mark.slow
def test_single_answers_spread_over_a_run(stage: Stage, tmp_path: Path) -> None:
    [row] = nfs.campaign(tmp_path / "nfs", stage=stage, only=("single",), every=97)
    assert list(row.problems()) == []


@pytest.mark.slow
def test_every_single_answer_of_a_run(stage: Stage, tmp_path: Path) -> None:
    [row] = nfs.campaign(tmp_path / "nfs", stage=stage, only=("single",))
    assert list(row.problems()) == []
