"""A step is absent or complete, and never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.errors import CheckpointError, CheckpointStorageError
from planc.runtime.checkpoint_format.layout import committed_steps, latest
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from tests.checkpoints.sample import manifest_at, save_sample, write_shards


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for name in ("step-10", "step-9", "step-0"):
        (tmp_path / name).mkdir()
    assert committed_steps(tmp_path) == (0, 9, 10)
    assert latest(tmp_path) == 10


def test_other_names_are_not_steps(tmp_path: Path) -> None:
    for name in (
        "step-7.tmp",
        "step-7.deleted.tmp",
        "step-07",
        "step--7",
        "step-\u0667",
        "step-7 ",
        "Step-7",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step-8").write_text("a file")
    (tmp_path / "step-9").symlink_to(tmp_path / "step-07")
    assert committed_steps(tmp_path) == ()


def test_an_absent_root_holds_no_step(tmp_path: Path) -> None:
    assert latest(tmp_path / "absent") is None


def test_a_committed_checkpoint_reads_back(tmp_path: Path) -> None:
    directory = save_sample(tmp_path / "a" / "b", step=3)
    assert directory == tmp_path / "a" / "b" / "step-3"
    assert read_manifest(directory) == manifest_at(3)


def test_what_is_begun_is_not_committed(tmp_path: Path) -> None:
    write_shards(commit.begin(tmp_path, step=3), step=3)
    assert latest(tmp_path) is None


def test_the_leftover_of_a_dead_save_is_cleared(tmp_path: Path) -> None:
    (commit.begin(tmp_path, step=3) / "rank-00007.safetensors").write_bytes(b"dead")
    directory = save_sample(tmp_path, step=3)
    assert sorted(path.name for path in directory.iterdir()) == [
        "manifest.json",
        "rank-00000.json",
        "rank-00000.safetensors",
        "rank-00001.json",
        "rank-00001.safetensors",
    ]


def test_a_committed_step_cannot_be_begun_again(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="never overwritten"):
        commit.begin(checkpoint.parent, step=3)
    assert verify(checkpoint) == ()


def test_a_step_committed_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    temporary = commit.begin(tmp_path, step=3)
    write_shards(temporary, step=3)
    (tmp_path / "step-3").mkdir()
    with pytest.raises(CheckpointError, match="never overwritten"):
        commit.finish(temporary, manifest=manifest_at(3))
    assert list((tmp_path / "step-3").iterdir()) == []


def test_a_file_that_rank_0_cannot_see_is_not_committed(tmp_path: Path) -> None:
    temporary = commit.begin(tmp_path, step=3)
    write_shards(temporary, step=3)
    (temporary / "rank-00001.safetensors").unlink()
    with pytest.raises(CheckpointStorageError, match=r"rank-00001\.safetensors"):
        commit.finish(temporary, manifest=manifest_at(3))
    assert latest(tmp_path) is None


@pytest.mark.parametrize("name", ["rank-00000.json", "rank-00001.safetensors"])
def test_a_link_in_place_of_a_file_is_not_committed(name: str, tmp_path: Path) -> None:
    temporary = commit.begin(tmp_path, step=3)
    write_shards(temporary, step=3)
    (temporary / name).rename(tmp_path / name)
    (temporary / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointStorageError, match=name):
        commit.finish(temporary, manifest=manifest_at(3))
    assert latest(tmp_path) is None


def test_an_unwritable_root_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(CheckpointStorageError, match="Not a directory"):
        commit.begin(tmp_path / "file" / "checkpoints", step=3)


def test_prune_keeps_the_highest_steps(tmp_path: Path) -> None:
    for step in (8, 9, 10):
        save_sample(tmp_path, step=step)
    assert commit.prune(tmp_path, keep_last=2) == (8,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-9"]


def test_prune_hides_a_step_before_it_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        save_sample(tmp_path, step=step)
    seen = []

    def record(path: Path) -> None:
        seen.append((path.name, committed_steps(tmp_path)))
        raise OSError("killed here")

    monkeypatch.setattr("shutil.rmtree", record)
    with pytest.raises(CheckpointStorageError, match="killed here"):
        commit.prune(tmp_path, keep_last=1)
    assert seen == [("step-1.deleted.tmp", (2,))]


def test_prune_clears_what_dead_saves_and_deletions_left(tmp_path: Path) -> None:
    for name in ("step-1.deleted.tmp", "step-2.tmp", "step-4.tmp"):
        (tmp_path / name).mkdir()
    save_sample(tmp_path, step=3)
    commit.prune(tmp_path, keep_last=1)
    # A save of step 4 may be under way.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4.tmp"]


def test_prune_does_not_delete_the_last_checkpoint(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="keep_last is 0"):
        commit.prune(checkpoint.parent, keep_last=0)
    assert verify(checkpoint) == ()
