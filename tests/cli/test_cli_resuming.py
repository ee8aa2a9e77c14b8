"""A run that goes on says what differs from the plan that saved its checkpoint, and refuses what matters."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.cli.running.resuming import changes_since_saved, refuse_old_checkpoints
from planc.graph.artifact import dump
from planc.graph.graph import Graph, plan_hash
from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME, Contents, Manifest, Progress
from planc.runtime.checkpoint_format.records import seal
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.errors import RunError
from planc.runtime.run_directory.directory import RunDirectory
from tests.plans import FULL, TINY, checked, write_plan


def graph(folder: Path, *settings: str) -> Graph:
    found = checked(write_plan(folder, text=FULL), *settings).graph
    assert found is not None
    return found


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The folder of a run of FULL that has saved one step, without its shards."""
    saved, folder = graph(tmp_path), tmp_path / "run"
    digest = plan_hash(saved)
    RunDirectory(folder).prepare(lambda _: dump(saved, sources=(), overrides=()), plan_hash=digest)
    step = folder / "checkpoints" / "step-3"
    step.mkdir(parents=True)
    progress = Progress(step=3, samples_consumed=24, seed=0, data_fingerprint="data")
    manifest = Manifest(
        planc_version="0",
        torch_version="0",
        step=3,
        plan_hash=digest,
        model_digest="model",
        mesh={},
        progress=progress,
        contents=Contents(grids=(), tensors={}),
        parts=(),
    )
    (step / MANIFEST_NAME).write_text(seal(manifest), encoding="utf-8")
    return folder


def test_the_same_plan_differs_in_nothing(run_folder: Path, tmp_path: Path) -> None:
    assert changes_since_saved(graph(tmp_path), run_folder, allowed=()) == ()


def test_a_change_of_what_is_trained_is_refused_with_the_words_that_allow_it(
    run_folder: Path, tmp_path: Path
) -> None:
    changed = graph(tmp_path, "optimizer.clip_grad_norm=0.5", "optimizer.schedule=constant()")
    with pytest.raises(RunError) as caught:
        changes_since_saved(changed, run_folder, allowed=())
    assert "schedule cosine -> constant" in caught.value.message
    assert "optimizer.clip_grad_norm 1.0 -> 0.5" in caught.value.message
    assert caught.value.help is not None
    assert (
        "--allow-change 'schedule ends at step' --allow-change optimizer.clip_grad_norm" in caught.value.help
    )


def test_an_allowed_change_is_said(run_folder: Path, tmp_path: Path) -> None:
    changed = graph(tmp_path, "optimizer.clip_grad_norm=0.5")
    found = changes_since_saved(changed, run_folder, allowed=("optimizer.clip_grad_norm",))
    assert found == ("optimizer.clip_grad_norm 1.0 -> 0.5 (allowed)",)


def test_harmless_changes_need_no_leave(run_folder: Path, tmp_path: Path) -> None:
    found = changes_since_saved(graph(tmp_path, "train.log_every=7 steps"), run_folder, allowed=())
    assert found == ("train.log_every 1 -> 7 (harmless)",)


def test_a_name_that_no_change_has_is_refused(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="unknown change in --allow-change: `lr`") as caught:
        changes_since_saved(graph(tmp_path), run_folder, allowed=("lr",))
    assert caught.value.help is not None
    assert "optimizer lr" in caught.value.help


def test_a_plan_that_is_not_kept_is_not_guessed_at(run_folder: Path, tmp_path: Path) -> None:
    for path in (run_folder / "plans").iterdir():
        path.unlink()
    (found,) = changes_since_saved(graph(tmp_path, "train.log_every=7 steps"), run_folder, allowed=())
    assert found.endswith("is not kept here, so differences are unknown")


def copied(saved: Graph, folder: Path) -> Path:
    """A run's folder of nothing but a checkpoint that keeps the plan which saved it."""
    temporary = commit.begin(folder / "checkpoints", step=3)
    manifest = Manifest(
        planc_version="0",
        torch_version="0",
        step=3,
        plan_hash=plan_hash(saved),
        model_digest="model",
        mesh={},
        progress=Progress(step=3, samples_consumed=24, seed=0, data_fingerprint="data"),
        contents=Contents(grids=(), tensors={}),
        parts=(),
    )
    commit.finish(temporary, manifest=manifest, plan=dump(saved, sources=(), overrides=()))
    return folder


def refusal(changed: Graph, folder: Path) -> tuple[str, str | None]:
    with pytest.raises(RunError) as caught:
        changes_since_saved(changed, folder, allowed=())
    return caught.value.message, caught.value.help


def test_a_checkpoint_copied_elsewhere_is_guarded_as_in_place(run_folder: Path, tmp_path: Path) -> None:
    elsewhere = copied(graph(tmp_path), tmp_path / "elsewhere")
    changed = graph(tmp_path, "optimizer.clip_grad_norm=0.5")
    assert refusal(changed, elsewhere) == refusal(changed, run_folder)
    assert changes_since_saved(graph(tmp_path), elsewhere, allowed=()) == ()


def test_the_plan_in_the_checkpoint_comes_before_the_one_that_its_run_keeps(tmp_path: Path) -> None:
    saved = graph(tmp_path)
    folder = copied(saved, tmp_path / "run")
    (folder / "plans").mkdir()
    (folder / "plans" / f"{plan_hash(saved)}.json").write_bytes(b"\xff")
    changed = graph(tmp_path, "optimizer.clip_grad_norm=0.5")
    assert "optimizer.clip_grad_norm 1.0 -> 0.5" in refusal(changed, folder)[0]


def test_another_plan_in_the_checkpoint_is_not_compared_with(tmp_path: Path) -> None:
    other = graph(tmp_path, "optimizer.clip_grad_norm=0.25")
    folder = copied(other, tmp_path / "run")
    directory = folder / "checkpoints" / "step-3"
    manifest = read_manifest(directory).model_copy(update={"plan_hash": plan_hash(graph(tmp_path))})
    (directory / MANIFEST_NAME).write_text(seal(manifest), encoding="utf-8")
    changed = graph(tmp_path, "optimizer.clip_grad_norm=0.5")
    (found,) = changes_since_saved(changed, folder, allowed=())
    assert "is not the one in" in found


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b'{"plan_hash": 1}'])
def test_a_damaged_kept_plan_is_said_and_no_traceback(
    content: bytes, run_folder: Path, tmp_path: Path
) -> None:
    [kept] = (run_folder / "plans").iterdir()
    kept.write_bytes(content)
    (found,) = changes_since_saved(graph(tmp_path, "train.log_every=7 steps"), run_folder, allowed=())
    assert "cannot be read" in found


def test_a_plan_that_saves_nothing_does_not_run_among_the_checkpoints_of_another(
    run_folder: Path, tmp_path: Path
) -> None:
    """Its metrics would be those that the other run resumes with."""
    unsaved = checked(write_plan(tmp_path, name="unsaved.plan", text=TINY)).graph
    assert unsaved is not None
    refuse_old_checkpoints(unsaved, tmp_path / "elsewhere" / "checkpoints")
    with pytest.raises(RunError, match=r"contains checkpoints, and the plan has no `checkpoint` block"):
        refuse_old_checkpoints(unsaved, run_folder / "checkpoints")
