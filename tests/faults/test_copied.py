"""A checkpoint that is copied elsewhere keeps its plan, and the guard against changed training with it."""

from __future__ import annotations

import shutil
from pathlib import Path

from planc.cli.main import main
from planc.runtime.checkpoint_format.verify import read_manifest
from tests.faults import runs

CHANGED = ("--set", "optimizer.clip_grad_norm=0.5")


def test_a_copied_checkpoint_refuses_changed_training_as_in_place(stage: runs.Stage, tmp_path: Path) -> None:
    in_place, elsewhere = stage.copy_begun(tmp_path / "in-place"), tmp_path / "elsewhere"
    shutil.copytree(in_place / "checkpoints" / "step-2", elsewhere / "checkpoints" / "step-2")
    texts = []
    for folder in (in_place, elsewhere):
        [ending] = runs.run(stage.plans[1], folder, world_size=1, more=CHANGED)
        assert ending.code == 2, runs.said(folder)
        texts.append(runs.said(folder))
    assert texts[0] == texts[1]
    assert "optimizer.clip_grad_norm 1.0 -> 0.5" in texts[1]
    [ending] = runs.run(stage.plans[1], elsewhere, world_size=1)
    assert ending.code == 0, runs.said(elsewhere)
    assert runs.exactness_problem(elsewhere, stage.undisturbed[1]) == ""


def test_a_run_counts_the_samples_of_its_steps(stage: runs.Stage) -> None:
    progress = read_manifest(stage.undisturbed[1] / "checkpoints" / f"step-{runs.NUM_STEPS}").progress
    assert progress.batch is not None
    assert progress.samples_consumed == runs.NUM_STEPS * progress.batch.samples


def test_diff_reads_the_plan_of_a_copied_checkpoint(stage: runs.Stage, tmp_path: Path) -> None:
    copy = shutil.copytree(stage.begun / "checkpoints" / "step-2", tmp_path / "step-2")
    assert main(["diff", str(copy), str(stage.plans[1]), "--exit-code"]) == 0
    assert main(["diff", str(copy), str(stage.plans[1]), *CHANGED, "--exit-code"]) == 1
