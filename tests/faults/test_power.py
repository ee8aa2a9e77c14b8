"""Power loss at every instant of a save, and proof that the model of a disk would show a missing fsync."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.layout import step_directory
from tests.faults import power
from tests.faults.calls import Call
from tests.faults.disk import Disk, write_image
from tests.faults.kills import NEW, Scene, trace
from tests.faults.power import crash_images, file_digests, in_order, power_rows, run_row, steps_problem
from tests.faults.runs import Stage


@pytest.mark.parametrize("num_samples", [8, pytest.param(400, marks=pytest.mark.slow)])
def test_a_save_survives_power_loss_after_every_call(num_samples: int, scene: Scene, tmp_path: Path) -> None:
    for row in power_rows(tmp_path, scene=scene, num_samples=num_samples):
        assert len(row.injections) > 50
        assert list(row.problems()) == []


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_survives_power_loss(every: int, stage: Stage, tmp_path: Path) -> None:
    row = run_row(tmp_path, plan=stage.plans[1], num_samples=8, every=every)
    assert len(row.injections) > 20
    assert list(row.problems()) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call], power.Known]:
    """An empty folder, and the calls of a save into it with what it saved."""
    folder = tmp_path_factory.mktemp("saved")
    before, top = folder / "before", folder / "top"
    for one in (before, top):
        one.mkdir()
    calls = [power.moved(call, old=top, new=before) for call in in_order(trace(top))]
    return before, calls, {NEW: file_digests(step_directory(top, step=NEW))}


def problems(saved: tuple[Path, list[Call], power.Known], calls: Sequence[Call], folder: Path) -> list[str]:
    """All that the loss of power can break of a save that makes only these of its calls."""
    before, _, known = saved
    found = []
    for index, (num_made, image) in enumerate(crash_images(before, calls, num_samples=20)):
        write_image(image, folder / str(index))
        found.append(
            steps_problem(folder / str(index), known=known, fewest=1 if num_made == len(calls) else 0)
        )
    return [problem for problem in found if problem]


def test_a_whole_save_is_safe(saved: tuple[Path, list[Call], power.Known], tmp_path: Path) -> None:
    assert problems(saved, saved[1], tmp_path) == []


@pytest.mark.parametrize("missing", range(8))
def test_without_any_one_of_its_syncs_it_would_not_be(
    missing: int, saved: tuple[Path, list[Call], power.Known], tmp_path: Path
) -> None:
    calls = saved[1]
    syncs = [index for index, call in enumerate(calls) if call.kind.startswith("fsync")]
    assert len(syncs) == 8, "two shards, their parts, the plan, the manifest, their folder, the root"
    left = [call for index, call in enumerate(calls) if index != syncs[missing]]
    assert problems(saved, left, tmp_path) != []


def test_what_was_written_since_the_last_sync_may_be_lost_cut_or_zeros(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    disk = Disk(tmp_path)
    disk.make(Call("write", str(tmp_path / "file"), data=b"new", offset=3))
    contents = {image["file"] for image in disk.images(num_samples=0, seed=0)}
    assert contents == {b"old", b"oldnew", b"old\0\0\0"}


def test_a_name_lasts_once_its_folder_is_synced(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.make(Call("create", str(tmp_path / "a")))
    disk.make(Call("rename", str(tmp_path / "a"), str(tmp_path / "b")))
    assert {tuple(image) for image in disk.images(num_samples=20, seed=0)} == {(), ("a",), ("b",)}
    disk.make(Call("fsync directory", str(tmp_path)))
    assert {tuple(image) for image in disk.images(num_samples=20, seed=0)} == {("b",)}
