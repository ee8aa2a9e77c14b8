"""The manifest of a checkpoint: what it holds, where each part lies, and the hash of every file."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from planc.runtime.run_directory.run_files import MAX_PLAN_BYTES
from planc.vocab import MeshDim

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION: Literal[3] = 3
"""The format of new manifests. Format 2, which kept no plan, is still read."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""The largest count that tensors, loaders and other programs support."""
PositiveCount = Annotated[int, Field(ge=1, lt=2**63)]
Step = Annotated[int, Field(ge=0, lt=10**18)]
"""The largest step that a directory's name can have."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Fact = Annotated[str, StringConstraints(max_length=1000)]
"""A name, a version or a digest."""

FileName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*\.safetensors$", max_length=100)
]
"""One path component: no separator, no leading dot, so no name leads out of the directory."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

ElementType = Literal[
    "float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"
]

_SEAL = re.compile(r',"sha256":"([0-9a-f]{64})"\}')
_SEAL_LENGTH = len(',"sha256":""}') + 64

Scalar = bool | Seed | float | Fact | None

Lengths = tuple[Count, ...]


class _Record(BaseModel):
    # NaN would be written as null and not come back.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class FileEntry(_Record):
    """The size and the hash of a file."""

    size_bytes: Count
    sha256: Sha256


class Chunk(_Record):
    """A box of a tensor, in elements, and the entry `key` of the file that holds it."""

    file: FileName
    key: str
    offsets: Lengths
    sizes: Lengths


class TensorEntry(_Record):
    """A whole tensor, as one device would hold it, and its chunks."""

    dtype: ElementType
    shape: Lengths
    chunks: tuple[Chunk, ...]


class Batch(_Record):
    """The sequences of one step over all ranks, since a step by which `since_samples` were consumed."""

    samples: PositiveCount
    since_step: Step = 0
    since_samples: Count = 0


class Progress(_Record):
    """Where the run is after `step` optimizer steps.

    `samples_consumed` counts sequences over all ranks, so it means the same on every mesh. `seed` and
    `step` determine every random draw of the next step; no generator state is kept.
    `recent_losses` are the losses by which a guard judges the next one. `evaluations_left` are the labels of
    evaluations that were due after the step, and postponed because the run was asked to stop.
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
    batch: Batch | None = None
    """None in checkpoints that were not saved by a run of this format."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        """ValueError for a number that the others rule out."""
        batch = self.batch
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


class Manifest(_Record):
    """A checkpoint. `plan_hash`, `model_digest` and `mesh` record what saved it; a loading run may differ.

    `model_digest` is the inventory's `config_digest`. `plan` is the entry of PLAN_NAME, the compiled plan
    that saved it; None if no run did, as after a conversion, and in format 2.
    """

    format_version: Literal[2, 3] = FORMAT_VERSION
    planc_version: Fact
    torch_version: Fact
    step: Step
    plan_hash: Fact
    model_digest: Fact
    mesh: dict[MeshDim, PositiveCount]
    progress: Progress
    tensors: dict[str, TensorEntry]
    files: dict[FileName, FileEntry]
    plan: FileEntry | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.progress.step != self.step:
            raise ValueError(f"step is {self.step}, but progress.step is {self.progress.step}")
        if self.format_version < FORMAT_VERSION and (self.plan or self.progress.batch):
            raise ValueError(f"format {self.format_version} has no plan and no batch")
        if self.plan is not None and self.plan.size_bytes > MAX_PLAN_BYTES:
            raise ValueError(f"its plan has {self.plan.size_bytes:_} bytes")
        places = set()
        for name, tensor in self.tensors.items():
            for chunk in tensor.chunks:
                if chunk.file not in self.files:
                    raise ValueError(f"{name} is in {chunk.file}, which is not among the files")
                if (chunk.file, chunk.key) in places:
                    raise ValueError(f"two chunks are at {chunk.key} in {chunk.file}")
                places.add((chunk.file, chunk.key))
        return self


def seal(record: BaseModel) -> str:
    """The text of a manifest or an index: JSON whose last field is the SHA-256 of all the others' text.

    The files' hashes do not cover the record's own facts, such as the number of consumed samples.
    """
    text = record.model_dump_json()
    return f'{text[:-1]},"sha256":"{_digest(text)}"}}'


def unseal(text: str) -> tuple[str, bool]:
    """The text without its seal, and whether it is the text that was sealed."""
    match = _SEAL.search(text, max(0, len(text) - _SEAL_LENGTH))
    if match is None or match.end() != len(text):
        return text, False
    sealed = f"{text[: match.start()]}}}"
    return sealed, _digest(sealed) == match[1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
