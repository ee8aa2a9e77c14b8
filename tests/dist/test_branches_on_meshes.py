"""A run that branches on another mesh is the run that resumes there, bit for bit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.verify import read_manifest
from tests.dist.saving import train_saving
from tests.faults.power import file_digests
from tests.parity.cases import NUM_STEPS, PP2_DP2, SAVE_STEP, TP2_DP2, Case

ONE = Case("1")
TP = Case("TP2·DP2", mesh=TP2_DP2)
PP = Case("PP2·DP2", mesh=PP2_DP2, micro_batch=1)


@pytest.mark.slow
@pytest.mark.parametrize(("saver", "brancher"), [(ONE, TP), (TP, PP), (PP, ONE)])
def test_a_branch_on_another_mesh_is_a_resume_there(
    saver: Case, brancher: Case, workspace: Path, tmp_path: Path
) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    train_saving(saver, workspace=workspace, run_folder=first)
    source = step_directory(first / "checkpoints", step=SAVE_STEP)
    before = file_digests(source)
    shutil.copytree(source, step_directory(copy / "checkpoints", step=SAVE_STEP))
    resumed = train_saving(brancher, workspace=workspace, run_folder=copy)
    settings = (*brancher.settings, f'checkpoint.resume="{source}"')
    branched = train_saving(
        replace(brancher, settings=settings), workspace=workspace, run_folder=tmp_path / "branch"
    )
    assert file_digests(source) == before
    assert branched.first_step == resumed.first_step == SAVE_STEP + 1
    assert [one.loss for one in branched.metrics] == [one.loss for one in resumed.metrics]
    assert branched.final.keys() == resumed.final.keys()
    assert all(torch.equal(tensor, resumed.final[name]) for name, tensor in branched.final.items())
    found, wanted = (
        read_manifest(step_directory(folder / "checkpoints", step=NUM_STEPS))
        for folder in (tmp_path / "branch", copy)
    )
    assert (found.parts, found.contents, found.progress) == (wanted.parts, wanted.contents, wanted.progress)
    assert found.origin is not None and (found.origin.path, found.origin.step) == (str(source), SAVE_STEP)
