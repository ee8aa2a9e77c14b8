"""Save a checkpoint: every rank writes its own chunks, rank 0 commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import planc
from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.best import KeepBest
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import step_directory, temporary_directory
from planc.runtime.checkpoint_format.manifest import (
    Base,
    Contents,
    Manifest,
    Origin,
    PartEntry,
    Progress,
)
from planc.runtime.checkpoint_format.part_files import write_part
from planc.runtime.files.best_effort import BestEffort
from planc.runtime.torch.agreement.agree import rank
from planc.runtime.torch.checkpoint.agreement import from_coordinator, through_coordinator
from planc.runtime.torch.checkpoint.planning import SavePlan, plan_save
from planc.runtime.torch.checkpoint.tensors import TrainingState, named_packings, named_tensors
from planc.vocab import MeshDim


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The directory of a new checkpoint, and its manifest's facts other than the tensors.

    With `keep_last`, older checkpoints are deleted once this one is committed, except those of `keep_best`.
    """

    root: Path
    progress: Progress
    plan_hash: str
    model_digest: str
    mesh: Mapping[MeshDim, int]
    base: Base | None = None
    """The tensors that the state leaves out."""
    origin: Origin | None = None
    keep_last: int | None = None
    keep_best: tuple[KeepBest, ...] = ()
    plan: Callable[[Path], str] | None = None
    """The text of the compiled plan for a file in a directory; only rank 0 calls it."""
    effort: BestEffort = field(default_factory=BestEffort)
    """The effort for deletions, which may fail."""

    @property
    def directory(self) -> Path:
        """`root/step-N`, N being `progress.step`."""
        return step_directory(self.root, step=self.progress.step)

    def manifest(self, *, contents: Contents, parts: tuple[PartEntry | None, ...]) -> Manifest:
        """The manifest of the step."""
        return Manifest(
            planc_version=planc.__version__,
            torch_version=torch.__version__,
            step=self.progress.step,
            plan_hash=self.plan_hash,
            model_digest=self.model_digest,
            mesh=dict(self.mesh),
            progress=self.progress,
            base=self.base,
            origin=self.origin,
            contents=contents,
            parts=parts,
        )


def save(state: TrainingState, *, to: Destination, plan: SavePlan | None = None) -> Path:
    """Save, and return the committed directory. Every rank must call it; training waits for it.

    `plan` is that of an earlier save of the same tensors; without one it is made. If any rank fails, every
    rank raises the same CheckpointError, and what was written of the step is removed.
    """
    tensors = named_tensors(state)
    plan = plan or plan_save(tensors, packings=named_packings(state), stages=state.stages)
    return write(plan.sources(tensors), plan=plan, to=to)


def write(
    sources: Iterable[Tensor],
    *,
    plan: SavePlan,
    to: Destination,
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Save as `save` does; `sources` are the values of this rank's chunks. `group` contains all ranks."""
    step = to.progress.step
    temporary = temporary_directory(to.root, step=step)
    _begin(to, group=group)

    def part() -> str:
        if not plan.chunks:
            return ""
        data = (as_bytes(tensor) for tensor in sources)
        return write_part(temporary, plan.chunks, data, step=step, rank=rank()).model_dump_json()

    def whole(parts: list[str]) -> str:
        entries = tuple(PartEntry.model_validate_json(one) if one else None for one in parts)
        manifest = to.manifest(contents=plan.contents, parts=entries)
        return str(commit.finish(temporary, manifest=manifest, plan=to.plan(temporary) if to.plan else None))

    try:
        through_coordinator(part, whole, group=group)
    except CheckpointError as error:
        if rank() == 0:
            _abandon(to.root, step=step, failure=error)
        raise
    if to.keep_last is not None and rank() == 0:
        commit.prune(to.root, keep_last=to.keep_last, keep_best=to.keep_best, effort=to.effort)
    return to.directory


def as_bytes(tensor: Tensor) -> memoryview:
    """A tensor's elements in C order, as in memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _begin(to: Destination, *, group: dist.ProcessGroup | None) -> None:
    def begin() -> str:
        return str(commit.begin(to.root, step=to.progress.step, effort=to.effort))

    from_coordinator(begin, group=group)


def _abandon(root: Path, *, step: int, failure: CheckpointError) -> None:
    try:
        commit.abandon(root, step=step)
    except CheckpointError as error:
        failure.add_note(error.message)
