"""The manifest of a checkpoint: what it holds, where each part lies, and the hash of every file."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    model_validator,
)

from planc.vocab import MeshDim

MANIFEST_NAME = "manifest.json"

FileName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*\.safetensors$", max_length=100)
]
"""One path component: no separator, no leading dot, so that no name leads out of the directory."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

ElementType = Literal[
    "float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"
]

_SEAL = re.compile(r',"sha256":"([0-9a-f]{64})"\}')
_SEAL_LENGTH = len(',"sha256":""}') + 64

Scalar = bool | int | float | str | None

Lengths = tuple[NonNegativeInt, ...]


class _Record(BaseModel):
    # NaN would be written as null and not come back.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class FileEntry(_Record):
    """One shard file."""

    size_bytes: NonNegativeInt
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


class Progress(_Record):
    """Where the run stands after `step` optimizer steps.

    `samples_consumed` counts sequences over all ranks, so it means the same on every mesh. `seed` and
    `step` determine every random draw of the next step; no generator state is kept.
    `recent_losses` are those by which a guard judges the next one. `evaluations_left` are labels of
    evaluations that were due after the step, and left because the run was told to end.
    """

    step: NonNegativeInt
    samples_consumed: NonNegativeInt
    seed: int
    data_fingerprint: str
    epoch: NonNegativeInt | None = None
    recent_losses: tuple[float, ...] = ()
    skipped_in_a_row: NonNegativeInt = 0
    scheduler: dict[str, Scalar] = Field(default_factory=dict)
    evaluations_left: tuple[str, ...] = ()


class Manifest(_Record):
    """A checkpoint. `plan_hash`, `model_digest` and `mesh` say what saved it; they do not bind who loads it.

    `model_digest` is the inventory's `config_digest`.
    """

    format_version: Literal[2] = 2
    planc_version: str
    torch_version: str
    step: NonNegativeInt
    plan_hash: str
    model_digest: str
    mesh: dict[MeshDim, PositiveInt]
    progress: Progress
    tensors: dict[str, TensorEntry]
    files: dict[FileName, FileEntry]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.progress.step != self.step:
            raise ValueError(f"step is {self.step}, but progress.step is {self.progress.step}")
        places = set()
        for name, tensor in self.tensors.items():
            for chunk in tensor.chunks:
                if chunk.file not in self.files:
                    raise ValueError(f"{name} lies in {chunk.file}, which is not among the files")
                if (chunk.file, chunk.key) in places:
                    raise ValueError(f"two chunks lie at {chunk.key} in {chunk.file}")
                places.add((chunk.file, chunk.key))
        return self


def seal(manifest: Manifest) -> str:
    """The text of a manifest file: JSON whose last field is the SHA-256 of all the others' text.

    The files' hashes do not cover what the manifest itself says: how many samples are consumed, for one.
    """
    text = manifest.model_dump_json()
    return f'{text[:-1]},"sha256":"{_digest(text)}"}}'


def unseal(text: str) -> tuple[str, bool]:
    """The text without its seal, and whether it is the very text that was sealed."""
    match = _SEAL.search(text, max(0, len(text) - _SEAL_LENGTH))
    if match is None or match.end() != len(text):
        return text, False
    sealed = f"{text[: match.start()]}}}"
    return sealed, _digest(sealed) == match[1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
