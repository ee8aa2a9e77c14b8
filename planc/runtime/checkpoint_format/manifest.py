"""The manifest of a checkpoint: what is true of all of it. Each rank's part states the hashes of its chunks.

A rank writes its part, `rank-N.json`, next to its chunks, `rank-N.safetensors`. The manifest holds the hash
of each part, and how every tensor is cut and which rank writes each chunk. So it grows with the tensors and
the ranks, never with their product, and the place of any chunk follows from it alone.
"""

from __future__ import annotations

from math import prod
from typing import Literal, Self

from pydantic import Field, model_validator

from planc.runtime.checkpoint_format.grid import Grid
from planc.runtime.checkpoint_format.hashing import sha256
from planc.runtime.checkpoint_format.records import (
    Count,
    ElementType,
    Fact,
    FileEntry,
    Lengths,
    PositiveCount,
    Record,
    Seed,
    Sha256,
    Step,
)
from planc.runtime.checkpoint_format.shards import element_bytes
from planc.runtime.files.run_files import MAX_PLAN_BYTES
from planc.vocab import MeshDim

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION: Literal[4] = 4
"""The only format that is read. Formats up to 3 had one manifest of all chunks."""

Scalar = bool | Seed | float | Fact | None


class WholeTensor(Record):
    """A tensor as one device would hold it."""

    dtype: ElementType
    shape: Lengths


class TensorEntry(WholeTensor):
    """A whole tensor, and the index of its grid in the manifest."""

    grid: Count


class Contents(Record):
    """Every tensor by name, and how each is cut and who writes it."""

    grids: tuple[Grid, ...]
    tensors: dict[str, TensorEntry]

    @model_validator(mode="after")
    def _is_cut_as_stated(self) -> Self:
        used = set()
        for name, tensor in self.tensors.items():
            if tensor.grid >= len(self.grids) or self.grids[tensor.grid].shape != tensor.shape:
                raise ValueError(f"{name} has shape {list(tensor.shape)}, but grid {tensor.grid} has another")
            used.add(tensor.grid)
        if len(used) < len(self.grids):
            raise ValueError("a grid belongs to no tensor")
        return self

    def ranks(self) -> set[int]:
        """Every rank that writes a chunk."""
        return set[int]().union(*(grid.ranks() for grid in self.grids))


class Base(Record):
    """The frozen parameters that a checkpoint leaves out, and the weight files that hold them.

    `path` is the model's directory as the plan names it. Only the files' hashes decide whether another
    directory is the same base.
    """

    path: Fact
    files: dict[Fact, FileEntry]
    tensors: dict[str, WholeTensor]

    @property
    def digest(self) -> str:
        """The SHA-256 of all files' names and hashes."""
        names = (f"{entry.sha256}  {name}\n" for name, entry in sorted(self.files.items()))
        return sha256("".join(names).encode())

    @property
    def size_bytes(self) -> int:
        """The size of the parameters, as a checkpoint would store them."""
        return sum(prod(entry.shape) * element_bytes(entry.dtype) for entry in self.tensors.values())


class Origin(Record):
    """The checkpoint of another run that a run started from.

    `path` is the checkpoint as the plan names it. `digest` is the SHA-256 of its manifest.json.
    """

    path: Fact
    step: Step
    plan_hash: Fact
    digest: Sha256


class Batch(Record):
    """The sequences of one step over all ranks, since a step by which `since_samples` were consumed."""

    samples: PositiveCount
    since_step: Step = 0
    since_samples: Count = 0


class Evaluated(Record):
    """An evaluation's last loss and its best, and for how many evaluations in a row none was better.

    A loss that is not finite is None. `data` is the hash of what was evaluated: other losses don't compare.
    `late` are finite losses by step, at steps that were saved before they were evaluated.
    """

    data: Sha256
    step: Step
    loss: float | None
    best: float | None = None
    best_step: Step | None = None
    num_without: Count = 0
    late: tuple[tuple[Step, float], ...] = ()


class StopRequest(Record):
    """A request by which the run ended early: of a plan whose callbacks have this hash, and its reason."""

    callbacks: Sha256
    reason: Fact


class Progress(Record):
    """The run's progress after `step` optimizer steps.

    `samples_consumed` counts sequences over all ranks, so it means the same on every mesh. `seed` and
    `step` determine every random draw of the next step; no generator state is kept.
    `recent_losses` are the losses by which a guard judges the next one. `evaluations_left` are the labels of
    evaluations that were due after the step, and postponed because the run was asked to stop. `evaluated` are
    the evaluations by which a run ends early or keeps checkpoints, by name. `stop` is the request by which a
    callback ended the run after the step.
    """

    step: Step
    samples_consumed: Count
    seed: Seed
    data_fingerprint: Fact
    epoch: Count | None = None
    recent_losses: tuple[float, ...] = ()
    skipped_in_a_row: Count = 0
    scheduler: dict[Fact, Scalar] = Field(default_factory=dict)
    evaluations_left: tuple[Fact, ...] = ()
    evaluated: dict[Fact, Evaluated] = Field(default_factory=dict)
    stop: StopRequest | None = None
    batch: Batch | None = None
    """None in checkpoints that were not saved by a run of this format."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        """ValueError for a number that the others rule out."""
        batch = self.batch
        for name, evaluated in self.evaluated.items():
            if evaluated.step > self.step or (evaluated.best is None) != (evaluated.best_step is None):
                raise ValueError(f"the evaluation {name} contradicts itself, or step {self.step}")
        if self.skipped_in_a_row > self.step:
            raise ValueError(f"{self.skipped_in_a_row} steps were skipped of {self.step}")
        if self.epoch is not None and self.epoch > self.samples_consumed:
            raise ValueError(f"epoch {self.epoch} was reached with {self.samples_consumed} samples")
        if batch is None:
            return self
        expected = batch.since_samples + (self.step - batch.since_step) * batch.samples
        if batch.since_step > self.step or expected != self.samples_consumed:
            raise ValueError(
                f"samples_consumed is {self.samples_consumed}, but {self.step} steps make it {expected}"
            )
        return self


class PartEntry(FileEntry):
    """The size and hash of a rank's part, and the size of the file of its chunks."""

    shard_bytes: Count


class Manifest(Record):
    """A checkpoint. `plan_hash`, `model_digest` and `mesh` record what saved it; a loading run may differ.

    `model_digest` is the inventory's `config_digest`. `base` has what `contents` lacks of the model; None if
    it lacks nothing. `origin` is None unless the run started from another run's checkpoint. `plan` is the
    entry of PLAN_NAME, the compiled plan that saved it; None if no run did, as after a conversion. `parts`
    are the entries of the ranks' parts, by rank; None for a rank that writes nothing.
    """

    format_version: Literal[4] = FORMAT_VERSION
    planc_version: Fact
    torch_version: Fact
    step: Step
    plan_hash: Fact
    model_digest: Fact
    mesh: dict[MeshDim, PositiveCount]
    progress: Progress
    plan: FileEntry | None = None
    base: Base | None = None
    origin: Origin | None = None
    contents: Contents
    parts: tuple[PartEntry | None, ...]

    @property
    def tensors(self) -> dict[str, TensorEntry]:
        return self.contents.tensors

    def writing_ranks(self) -> tuple[int, ...]:
        """The ranks that have written a part, in order."""
        return tuple(rank for rank, part in enumerate(self.parts) if part is not None)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.progress.step != self.step:
            raise ValueError(f"step is {self.step}, but progress.step is {self.progress.step}")
        if self.plan is not None and self.plan.size_bytes > MAX_PLAN_BYTES:
            raise ValueError(f"its plan has {self.plan.size_bytes:_} bytes")
        for grid in self.contents.grids:
            last = max((first + stride * (count - 1) for first, stride, count in grid.writers), default=-1)
            if last >= len(self.parts):
                raise ValueError(f"rank {last} writes chunks, but there are {len(self.parts)} parts")
        if self.base is not None and (twice := sorted(self.base.tensors.keys() & self.tensors.keys())):
            raise ValueError(f"{twice[0]} is both in the checkpoint and in its base")
        wanted, found = self.contents.ranks(), set(self.writing_ranks())
        if wanted != found:
            rank = min(wanted ^ found)
            what = "writes chunks, but has no part" if rank in wanted else "has a part, but writes no chunk"
            raise ValueError(f"rank {rank} {what}")
        return self


def without_tensors(manifest: Manifest) -> Manifest:
    """The manifest's facts alone."""
    empty = Contents(grids=(), tensors={})
    return manifest.model_copy(update={"contents": empty, "parts": (), "plan": None})
