"""A step is absent or complete, and never overwritten."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.best import KeepBest, best_steps
from planc.runtime.checkpoint_format.errors import CheckpointError, CheckpointStorageError
from planc.runtime.checkpoint_format.layout import committed_steps, latest
from planc.runtime.checkpoint_format.manifest import Evaluated
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.files.best_effort import BestEffort
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


def test_prune_keeps_the_best_of_each_evaluation_and_what_it_can_not_judge(tmp_path: Path) -> None:
    """Losses count at their own step, on the data that is evaluated now; of equal ones the earlier step's."""
    losses = {1: 2.0, 2: 1.0, 3: 1.0, 4: 0.1, 5: 0.2, 6: None, 7: 3.0, 8: 3.0}
    for step, loss in losses.items():
        data = ("b" if step == 4 else "a") * 64
        one = Evaluated(data=data, step=step - (step == 5), loss=loss)
        save_sample(tmp_path, step=step, evaluated={"held": one})
    (tmp_path / "step-7" / "manifest.json").write_text("{}", encoding="utf-8")
    keep = (KeepBest("held", 2, "a" * 64), KeepBest("other", 1, "a" * 64))
    said = list[str]()
    assert commit.prune(tmp_path, keep_last=1, keep_best=keep, effort=BestEffort(said.append)) == (1, 4, 5, 6)
    assert committed_steps(tmp_path) == (2, 3, 7, 8)
    assert "step-7" in said[0] and len(said) == 1
    read = [read_manifest(tmp_path / f"step-{step}") for step in (8, 3, 2)]
    assert best_steps(read) == {"held": 2}


def test_prune_hides_a_step_before_it_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        save_sample(tmp_path, step=step)
    seen, said = [], list[str]()

    def record(path: Path, **_: object) -> None:
        seen.append((path.name, committed_steps(tmp_path)))
        raise OSError(errno.EBUSY, "held open")

    monkeypatch.setattr("shutil.rmtree", record)
    assert commit.prune(tmp_path, keep_last=1, effort=BestEffort(said.append)) == (1,)
    assert set(seen) == {("step-1.deleted.tmp", (2,))}
    hidden = tmp_path / "step-1.deleted.tmp"
    assert said == [f"warning: cannot delete {hidden}: held open (training does not depend on it)"]


def test_what_cant_be_deleted_is_tried_again_by_each_later_prune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    effort = BestEffort(said.append)

    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EBUSY, "held open")

    for step in (1, 2):
        save_sample(tmp_path, step=step)
    with monkeypatch.context() as held:
        held.setattr("shutil.rmtree", refuse)
        commit.prune(tmp_path, keep_last=1, effort=effort)
        commit.prune(tmp_path, keep_last=1, effort=effort)
    save_sample(tmp_path, step=3)
    commit.prune(tmp_path, keep_last=1, effort=effort)
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
    assert len(said) == 2 and said[1].startswith("it was possible again, after 2 failed attempts")


def test_a_leftover_that_cant_be_deleted_does_not_keep_its_step_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    (tmp_path / "step-3.tmp").mkdir()
    (tmp_path / "step-3.tmp" / "rank-00000.safetensors").write_bytes(b"dead")

    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.ENOTEMPTY, "held open")

    monkeypatch.setattr("shutil.rmtree", refuse)
    temporary = commit.begin(tmp_path, step=3, effort=BestEffort(said.append))
    assert list(temporary.iterdir()) == []
    assert len(said) == 1 and "step-3.deleted.tmp: held open" in said[0]


def test_a_rename_whose_answer_was_lost_is_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.rename

    def rename(source: Path, target: Path) -> Path:
        real(source, target)
        # As a client of NFS that has sent its question twice.
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(Path, "rename", rename)
    save_sample(tmp_path, step=3)
    assert committed_steps(tmp_path) == (3,)


@pytest.mark.parametrize("unanswered", range(3))
def test_a_server_that_does_not_answer_once_hides_no_step_from_prune(
    unanswered: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.path.lexists` says no where lstat is answered with ESTALE."""
    for step in (1, 2):
        save_sample(tmp_path, step=step)
    ask, asked = os.path.lexists, list[Path]()

    def lexists(path: Path) -> bool:
        asked.append(path)
        return len(asked) != unanswered + 1 and ask(path)

    monkeypatch.setattr("os.path.lexists", lexists)
    commit.prune(tmp_path, keep_last=1)
    assert committed_steps(tmp_path) == (2,)
    assert asked


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
