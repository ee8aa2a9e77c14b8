"""Rows 90 to 100 of the catalogue of bad input: checkpoints that are not, or not quite."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME
from planc.runtime.torch.checkpoint import latest_step, load
from tests.faults.corpus import REFUSED, SHARD, STEP, payload
from tests.faults.state import build, digests, expected, fill, save_step, saved_root

WORLD_SIZE = 3


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with steps 9 and 10 of three ranks; tests copy it."""
    return saved_root(tmp_path_factory.mktemp("corpus") / "root", steps=(9, STEP), world_size=WORLD_SIZE)


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "checkpoints"))


def refuse(root: Path) -> str:
    """What a load of the newest step is refused with, as damage and before it has changed a tensor."""
    state = build(world_size=1)
    fill(state, step=99)
    before = digests(state)
    with pytest.raises(CorruptCheckpointError) as refused:
        load(state, directory=step_directory(root, step=STEP))
    assert digests(state) == before
    return refused.value.message


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_checkpoint_is_refused_as_damage(name: str, root: Path, tmp_path: Path) -> None:
    damage, said = REFUSED[name]
    damage(step_directory(root, step=STEP), tmp_path / "marker")
    assert said in refuse(root)
    assert not (tmp_path / "marker").exists()


def test_94_the_manifest_of_another_run_is_refused(root: Path, tmp_path: Path) -> None:
    state = build(world_size=1)
    save_step(state, root=tmp_path / "other", step=STEP, world_size=1)
    shutil.copy(tmp_path / "other" / f"step-{STEP}" / MANIFEST_NAME, root / f"step-{STEP}")
    assert "rank-00000.json: its SHA-256" in refuse(root)


def test_96_step_10_comes_after_step_9(root: Path) -> None:
    assert latest_step(root) == STEP


def test_97_what_a_dead_save_left_is_neither_read_nor_kept(root: Path) -> None:
    leftovers = [root / "step-8.tmp", root / f"step-{STEP + 1}.tmp"]
    for leftover in leftovers:
        shutil.copytree(root / "step-9", leftover)
    assert latest_step(root) == STEP
    save_step(build(world_size=1), root=root, step=STEP + 1, world_size=1, keep_last=2)
    assert sorted(os.listdir(root)) == [f"step-{STEP}", f"step-{STEP + 1}"]


def test_99_what_anybody_wrote_into_an_open_folder_is_refused(root: Path) -> None:
    directory = step_directory(root, step=STEP)
    directory.chmod(0o777)
    state = build(world_size=1)
    load(state, directory=directory)
    assert digests(state) == expected(STEP), "the directory's mode alone is not damage"
    shutil.copy(root / "step-9" / SHARD, directory / SHARD)
    assert f"{SHARD}: its SHA-256" in refuse(root)


@pytest.mark.parametrize(
    "name", [MANIFEST_NAME, "rank-00000.safetensors", SHARD, "rank-00001.json", ".metadata", "x.pt"]
)
def test_a_payload_in_any_file_never_runs(name: str, root: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    directory = step_directory(root, step=STEP)
    is_listed = (directory / name).exists()
    (directory / name).write_bytes(payload(marker))
    if is_listed:
        refuse(root)
    else:
        load(build(world_size=1), directory=directory)
    assert not marker.exists()
    pickle.loads((directory / name).read_bytes())
    assert marker.exists(), "it would have told"


def test_with_a_bad_step_moved_aside_the_one_before_loads(root: Path) -> None:
    (root / f"step-{STEP}").rename(root.parent / "aside")
    assert committed_steps(root) == (9,)
    state = build(world_size=1)
    load(state, directory=step_directory(root, step=9))
    assert digests(state) == expected(9)
