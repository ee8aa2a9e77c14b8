"""Save a checkpoint: every rank writes its own chunks, rank 0 commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver as dcp

import planc
from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import step_directory, temporary_directory
from planc.runtime.checkpoint_format.manifest import Manifest, Progress
from planc.runtime.torch.agreement.texts import rank
from planc.runtime.torch.checkpoint.agreement import from_coordinator
from planc.runtime.torch.checkpoint.dcp_errors import dcp_errors
from planc.runtime.torch.checkpoint.tensors import TrainingState, named_packings, named_tensors
from planc.runtime.torch.checkpoint.writer import (
    Contents,
    SafetensorsWriter,
    TensorSavePlanner,
)
from planc.vocab import MeshDim


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a checkpoint goes, and its manifest's facts other than the tensors.

    With `keep_last`, older checkpoints are deleted once this one is committed.
    """

    root: Path
    progress: Progress
    plan_hash: str
    model_digest: str
    mesh: Mapping[MeshDim, int]
    keep_last: int | None = None
    plan: Callable[[Path], str] | None = None
    """The text of the compiled plan for a file in a directory; only rank 0 calls it."""

    @property
    def directory(self) -> Path:
        """`root/step-N`, N being `progress.step`."""
        return step_directory(self.root, step=self.progress.step)

    def manifest(self) -> Manifest:
        """The manifest, without tensors yet."""
        return Manifest(
            planc_version=planc.__version__,
            torch_version=torch.__version__,
            step=self.progress.step,
            plan_hash=self.plan_hash,
            model_digest=self.model_digest,
            mesh=dict(self.mesh),
            progress=self.progress,
            tensors={},
            files={},
        )


def save(state: TrainingState, *, to: Destination) -> Path:
    """Save, and return the committed directory. Every rank must call it; training waits for it.

    If any rank fails, every rank raises the same CheckpointError, and what was written of the step is
    removed.
    """
    tensors = named_tensors(state)
    return write(tensors, to=to, planner=TensorSavePlanner(named_packings(state)))


def write(
    tensors: Mapping[str, Tensor],
    *,
    to: Destination,
    planner: TensorSavePlanner,
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Save as `save` does, the tensors that the planner selects; `group` contains all ranks."""
    step = to.progress.step
    temporary = temporary_directory(to.root, step=step)
    _begin(to.root, step=step, group=group)
    finish = partial(_finish, temporary, to=to)
    writer = SafetensorsWriter(temporary, rank=rank(), commit=finish)
    try:
        save_with(writer, tensors=tensors, planner=planner, group=group)
    except CheckpointError as error:
        if rank() == 0:
            _abandon(to.root, step=step, failure=error)
        raise
    if to.keep_last is not None:
        _prune(to.root, keep_last=to.keep_last, group=group)
    return to.directory


def save_with(
    writer: SafetensorsWriter,
    *,
    tensors: Mapping[str, Tensor],
    planner: TensorSavePlanner,
    group: dist.ProcessGroup | None,
) -> None:
    """DCP's save. All ranks raise the CheckpointErrors of any rank."""
    with dcp_errors():
        dcp.save(
            dict(tensors),
            storage_writer=writer,
            planner=planner,
            process_group=group,
            no_dist=not dist.is_initialized(),
        )


def _begin(root: Path, *, step: int, group: dist.ProcessGroup | None) -> None:
    def begin() -> str:
        return str(commit.begin(root, step=step))

    from_coordinator(begin, group=group)


def _finish(temporary: Path, contents: Contents, *, to: Destination) -> None:
    full = to.manifest().model_copy(update={"tensors": contents.tensors, "files": contents.files})
    commit.finish(temporary, manifest=full, plan=to.plan(temporary) if to.plan else None)


def _prune(root: Path, *, keep_last: int, group: dist.ProcessGroup | None) -> None:
    def prune() -> str:
        return str(commit.prune(root, keep_last=keep_last))

    from_coordinator(prune, group=group)


def _abandon(root: Path, *, step: int, failure: CheckpointError) -> None:
    try:
        commit.abandon(root, step=step)
    except CheckpointError as error:
        failure.add_note(error.message)
