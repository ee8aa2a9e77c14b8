"""Saves a checkpoint: every rank its own chunks, rank 0 the commit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver as dcp

import planc
from planc.runtime.backends.torch.checkpoint.agreement import from_coordinator, rank
from planc.runtime.backends.torch.checkpoint.dcp_errors import dcp_errors
from planc.runtime.backends.torch.checkpoint.tensors import TrainingState, named_tensors
from planc.runtime.backends.torch.checkpoint.writer import (
    Contents,
    SafetensorsWriter,
    TensorSavePlanner,
)
from planc.runtime.checkpoints import commit
from planc.runtime.checkpoints.errors import CheckpointError
from planc.runtime.checkpoints.layout import step_directory, temporary_directory
from planc.runtime.checkpoints.manifest import Manifest, Progress
from planc.vocab import MeshDim


def save(
    state: TrainingState,
    *,
    root: Path,
    progress: Progress,
    plan_hash: str,
    model_digest: str,
    mesh: Mapping[MeshDim, int],
    keep_last: int | None = None,
) -> Path:
    """The committed directory `root/step-N`, N being `progress.step`. Every rank must call it.

    With `keep_last`, older checkpoints are deleted once this one is committed. Raises the same
    CheckpointError on every rank, whichever failed; then what was written of the step is removed.
    """
    empty = Manifest(
        planc_version=planc.__version__,
        torch_version=torch.__version__,
        step=progress.step,
        plan_hash=plan_hash,
        model_digest=model_digest,
        mesh=dict(mesh),
        progress=progress,
        tensors={},
        files={},
    )
    temporary = temporary_directory(root, step=progress.step)
    _begin(root, step=progress.step)
    writer = SafetensorsWriter(temporary, rank=rank(), commit=partial(_finish, temporary, manifest=empty))
    try:
        _write(state, writer=writer)
    except CheckpointError as error:
        if rank() == 0:
            _abandon(root, step=progress.step, failure=error)
        raise
    if keep_last is not None:
        _prune(root, keep_last=keep_last)
    return step_directory(root, step=progress.step)


def _write(state: TrainingState, *, writer: SafetensorsWriter) -> None:
    with dcp_errors():
        dcp.save(
            named_tensors(state),
            storage_writer=writer,
            planner=TensorSavePlanner(),
            no_dist=not dist.is_initialized(),
        )


def _begin(root: Path, *, step: int) -> None:
    def begin() -> str:
        return str(commit.begin(root, step=step))

    from_coordinator(begin)


def _finish(temporary: Path, contents: Contents, *, manifest: Manifest) -> None:
    full = manifest.model_copy(update={"tensors": contents.tensors, "files": contents.files})
    commit.finish(temporary, manifest=full)


def _prune(root: Path, *, keep_last: int) -> None:
    def prune() -> str:
        return str(commit.prune(root, keep_last=keep_last))

    from_coordinator(prune)


def _abandon(root: Path, *, step: int, failure: CheckpointError) -> None:
    try:
        commit.abandon(root, step=step)
    except CheckpointError as error:
        failure.add_note(error.message)
