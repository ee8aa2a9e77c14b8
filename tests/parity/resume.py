"""A run that stops and resumes, on the same mesh and on another, against one that never stopped."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from planc.runtime.checkpoint_format.layout import step_directory
from tests.dist.pool import run_ranks
from tests.parity.cases import ALL_8, CP2_DP2, CP2_TP2, SAVE_STEP, TP2_DP2, TP2_REPLICATE2, Case, compile_case
from tests.parity.compare import disagreements, relative_distance, worst_relative
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import Training

TOLERANCE = 1e-6
"""Relative, in fp32, between meshes: of each resumed step's loss, of every parameter after the last step."""

SHAPES: tuple[Case, ...] = (
    Case("1"),
    Case("DP2", "dp_replicate", {"dp_replicate": 2}),
    Case("DP2", "dp_shard", {"dp_shard": 2}),
    Case("CP2", "ring headtail", {"cp": 2}),
    Case("TP2", "", {"tp": 2}),
    Case("DP4", "dp_replicate", {"dp_replicate": 4}),
    Case("DP4", "HSDP 2x2", {"dp_replicate": 2, "dp_shard": 2}),
    Case("DP4", "whole replicas", {"dp_replicate": 4}, replicas="whole"),
    Case("TP2·DP2", "whole replicas", TP2_REPLICATE2, replicas="whole"),
    Case("CP2·DP2", "dp_replicate", {"dp_replicate": 2, "cp": 2}),
    Case("TP2·DP2", "dp_shard", TP2_DP2),
    Case("CP2·DP2", "ring headtail", CP2_DP2),
    Case("CP2·TP2", "allgather headtail", CP2_TP2, rotate="allgather"),
    Case("CP4", "ulysses", {"cp": 4}, rotate="ulysses", balance="none"),
    Case("DP4", "dp_shard", {"dp_shard": 4}),
    Case("TP4", "", {"tp": 4}),
    Case("TP2·DP2", "dp_replicate", TP2_REPLICATE2),
    Case("DP2·CP2·TP2", "ring headtail", ALL_8),
    Case("TP2·DP2", "tied", TP2_DP2, model="llama-tied"),
    Case("1", "tied", model="llama-tied"),
)
"""Each is resumed on itself and on every other with the same model: all the meshes of 1, 2 and 4 ranks."""


@dataclass(frozen=True, slots=True)
class ResumeRow:
    """A checkpoint of one case, resumed on another. Errors are relative to the run that never stopped."""

    saved_on: Case
    resumed_on: Case
    loss_error: float
    weight_error: float
    worst_parameter: str
    same_bits: bool
    """Losses and weights are equal bit for bit."""
    same_ids: bool
    same_state: bool
    """Every parameter and moment that the resume found is, bit for bit, what was saved."""
    problems: tuple[str, ...]


def pairs(shapes: Sequence[Case] = SHAPES) -> tuple[tuple[Case, tuple[Case, ...]], ...]:
    """Every shape with those that it is resumed on: itself first, then all others of its model."""
    return tuple(
        (saver, (saver, *(other for other in shapes if other.model == saver.model and other != saver)))
        for saver in shapes
    )


def resume_rows(
    saver: Case, loaders: Sequence[Case], *, workspace: Path, reference: Training
) -> list[ResumeRow]:
    """One run of `saver` to the end, then its middle checkpoint resumed on each of `loaders`."""
    with TemporaryDirectory(prefix="planc-resume-") as name:
        folder = Path(name)
        whole = _train(saver, workspace=workspace, run_folder=folder / "whole")
        rows = []
        for index, loader in enumerate(loaders):
            run_folder = folder / f"resumed-{index}"
            checkpoint = step_directory(Path("checkpoints"), step=SAVE_STEP)
            shutil.copytree(folder / "whole" / checkpoint, run_folder / checkpoint)
            resumed = _train(loader, workspace=workspace, run_folder=run_folder)
            rows.append(_row(saver, loader, whole=whole, resumed=resumed, reference=reference))
    return rows


def _train(case: Case, *, workspace: Path, run_folder: Path) -> list[Record]:
    graph = compile_case(case, workspace=workspace, saves=True)
    return run_ranks(train_rank, case.world_size, Task(graph, workspace, run_folder), init=False)


def _row(
    saver: Case, loader: Case, *, whole: Sequence[Record], resumed: Sequence[Record], reference: Training
) -> ResumeRow:
    before, after = whole[0], resumed[0]
    expected = [step.loss for step in before.metrics[SAVE_STEP:]]
    actual = [step.loss for step in after.metrics]
    errors = {name: relative_distance(after.final[name], tensor) for name, tensor in before.final.items()}
    worst = max(errors, key=lambda name: errors[name])
    equal = (torch.equal(after.final[name], tensor) for name, tensor in before.final.items())
    ids = tuple(step.sample_ids for step in (*before.metrics[:SAVE_STEP], *after.metrics))
    row = ResumeRow(
        saver,
        loader,
        loss_error=worst_relative(actual, expected),
        weight_error=errors[worst],
        worst_parameter=worst,
        same_bits=actual == expected and all(equal),
        same_ids=ids == reference.sample_ids,
        same_state=bool(after.states[SAVE_STEP]) and after.states[SAVE_STEP] == before.states[SAVE_STEP],
        problems=(),
    )
    began = [] if after.first_step == SAVE_STEP + 1 else [f"began at step {after.first_step}"]
    return replace(row, problems=(*began, *_faults(row), *disagreements(resumed)))


def _faults(row: ResumeRow) -> tuple[str, ...]:
    found = []
    if row.saved_on == row.resumed_on and not row.same_bits:
        found.append("not equal bit for bit on the same mesh")
    if row.loss_error > TOLERANCE:
        found.append(f"loss differs by {row.loss_error:.1e}")
    if row.weight_error > TOLERANCE:
        found.append(f"{row.worst_parameter} differs by {row.weight_error:.1e}")
    if not row.same_state:
        found.append("the resume found other tensors than were saved")
    if not row.same_ids:
        found.append("sample ids differ")
    return tuple(found)
