"""Every entry of a run directory other than training state, damaged in every way: a run can still write.

`tests/faults/test_folder_damage.py` shows the same of whole runs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from planc.runtime.errors import RunError
from planc.runtime.files.best_effort import BestEffort
from planc.runtime.observer import StepMetrics
from planc.runtime.ranks.rank_log import RankLog
from planc.runtime.ranks.whereabouts import SIZE_BYTES, Folder
from planc.runtime.run_directory.directory import RunDirectory
from tests.faults.entry_damage import DAMAGES, Outside

ENTRIES = (
    *(".lock", "plan.json", "plans", "plans/abc.json", "metrics.jsonl", "metrics.1.jsonl", "status.json"),
    *("logs", "logs/rank-0.jsonl", "ranks", "ranks/rank-0", "profile", "tensorboard", "wandb", "wandb.id"),
)


def metrics(step: int) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=5.0 / step,
        grad_norm=1.5,
        learning_rate=1e-3,
        tokens=512,
        labels=500,
        tokens_per_second=1000.0,
        tokens_per_second_per_device=1000.0,
        seconds=0.5,
        memory_bytes=2**20,
        phase_seconds={"forward": 0.25},
    )


def go_on(folder: Path, *, last_step: int) -> tuple[str, ...]:
    """Everything that a run on one rank writes except checkpoints; its notes."""
    directory = RunDirectory(folder)
    notes = directory.free_lock()
    with directory.claim():
        notes += directory.repair()
        directory.prepare(lambda _: "a plan", plan_hash="abc")
        log = RankLog(folder, rank=0, host="here", mesh={}, effort=BestEffort())
        board = Folder(folder / "ranks")
        board.open(0).close()
        directory.truncate_metrics(last_step=last_step)
        directory.write_status("running", step=last_step)
        directory.append_metrics(metrics(last_step + 1))
        log.started(first_step=last_step + 1, num_steps=9)
        board.read(2)
        board.remove(0)
        directory.write_status("done", step=last_step + 1)
    return notes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that has made two steps."""
    folder = tmp_path / "run"
    for step in (0, 1):
        assert go_on(folder, last_step=step) == ()
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ENTRIES)
def test_a_run_goes_on_beside_what_it_sets_aside(
    name: str, damage: str, folder: Path, tmp_path: Path
) -> None:
    outside = Outside(tmp_path / "outside")
    outside.make()
    DAMAGES[damage](folder / name, outside)
    notes = go_on(folder, last_step=2)
    assert outside.problem() == ""
    assert go_on(folder, last_step=3) == (), "what was set aside is said once"
    assert all(str(folder / name) in note for note in notes)
    assert [step for step, _ in RunDirectory(folder).losses()][-2:] == [3, 4]
    assert json.loads((folder / "status.json").read_text())["state"] == "done"
    assert (folder / "plans" / "abc.json").read_text() == (folder / "plan.json").read_text() == "a plan"
    with (folder / "logs" / "rank-0.jsonl").open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 1000))
        assert b'"started"' in log.read()


def test_sound_lines_beside_damaged_ones_are_kept(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    damaged = first + b"\xff\n" + b'{"step": 2}\n' + b'{"step": 2, "step": 1, "loss": 1}\n' + second
    path.write_bytes(damaged + second[: second.rindex(b"}", 0, -2) + 1])
    [note] = go_on(folder, last_step=2)
    assert "has 3 damaged lines: kept the others" in note
    assert [step for step, _ in RunDirectory(folder).losses()] == [1, 2, 3]
    assert (folder / "metrics.jsonl.damaged-1").read_bytes().startswith(damaged)


def test_a_second_damage_is_set_aside_beside_the_first(folder: Path) -> None:
    for number in (1, 2):
        (folder / "metrics.jsonl").write_bytes(b"\xff\n")
        [note] = go_on(folder, last_step=0)
        assert note.endswith(f"metrics.jsonl.damaged-{number}")


def test_a_lock_that_another_run_holds_is_read_whatever_is_in_it(folder: Path) -> None:
    with RunDirectory(folder).claim() as held:
        held.truncate(0)
        (folder / ".lock").write_bytes(b"\xff" * 10_000)
        with pytest.raises(RunError, match="another run writes to") as caught:
            RunDirectory(folder).claim()
    assert len(caught.value.message) < 1000


def test_a_line_cut_short_is_ended_before_another_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "rank-0.jsonl"
    path.parent.mkdir()
    path.write_text('{"event": "st')
    RankLog(tmp_path, rank=0, host="here", mesh={}, effort=BestEffort()).write("noted")
    _, line = path.read_text().splitlines()
    assert json.loads(line)["event"] == "noted"


def test_a_record_of_another_size_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "rank-0").write_bytes(bytes(SIZE_BYTES + 1))
    assert Folder(tmp_path).read(1) == [None]
