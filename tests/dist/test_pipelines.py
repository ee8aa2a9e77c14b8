"""Pipelines beyond the lattice: weights from files, checkpoints on other meshes, and exports."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from planc.runtime.checkpoint_format.layout import step_directory
from tests.dist.pool import run_ranks
from tests.parity.cases import NUM_STEPS, PIPELINES, SAVE_STEP, Case, compile_case, make_workspace
from tests.parity.compare import parity
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import train_reference

PP4, PP2_DP2, PP2_TP2 = PIPELINES
ONE = Case("1", model="llama-deep")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("pipelines") / "workspace")


def train(case: Case, *, workspace: Path, run_folder: Path) -> list[Record]:
    task = Task(compile_case(case, workspace=workspace, saves=True), workspace, run_folder)
    return run_ranks(train_rank, case.world_size, task, init=False)


@pytest.mark.parametrize("case", PIPELINES, ids=lambda case: case.name)
def test_a_pipeline_with_weights_from_files_trains_as_one_process(case: Case, workspace: Path) -> None:
    row = parity(case, workspace=workspace, reference=train_reference(case.model, workspace=workspace))
    assert row.problems == ()


def resume(case: Case, *, step: int, source: Path, workspace: Path, run_folder: Path) -> list[Record]:
    """The records of a run that goes on from another run's checkpoint."""
    shutil.copytree(
        step_directory(source / "checkpoints", step=step),
        step_directory(run_folder / "checkpoints", step=step),
    )
    return train(case, workspace=workspace, run_folder=run_folder)


def test_a_checkpoint_goes_from_mesh_to_mesh_bit_for_bit(workspace: Path, tmp_path: Path) -> None:
    """pp 4 saves; other meshes resume, and save; pp 4 resumes what they saved."""
    first = tmp_path / "first"
    saved = train(PP4, workspace=workspace, run_folder=first)[0].states[SAVE_STEP]
    assert {f"optimizer.model.layers.{layer}.mlp.up_proj.weight.exp_avg" for layer in range(4)} < saved.keys()
    for number, case in enumerate((PP2_DP2, PP2_TP2, ONE)):
        there, back = tmp_path / f"there-{number}", tmp_path / f"back-{number}"
        records = resume(case, step=SAVE_STEP, source=first, workspace=workspace, run_folder=there)
        for record in records:
            assert record.first_step == SAVE_STEP + 1
            assert record.states[SAVE_STEP] == saved
        for record in resume(PP4, step=NUM_STEPS, source=there, workspace=workspace, run_folder=back):
            assert record.states[NUM_STEPS] == records[0].states[NUM_STEPS]


def test_an_export_of_a_pipeline_has_every_stage(workspace: Path, tmp_path: Path) -> None:
    case = replace(PP2_TP2, settings=("checkpoint.export.hf.when=end",))
    final = train(case, workspace=workspace, run_folder=tmp_path)[0].final
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export/hf")
    exported = dict(model.named_parameters())
    assert exported.keys() == final.keys()
    assert [name for name in final if not torch.equal(exported[name], final[name])] == []
