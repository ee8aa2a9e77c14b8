"""The parts of a checkpoint's records: strict JSON, bounded numbers, names without separators."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""The largest count that tensors, loaders and other programs support."""
PositiveCount = Annotated[int, Field(ge=1, lt=2**63)]
Step = Annotated[int, Field(ge=0, lt=10**18)]
"""The largest step that a directory's name can have."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Rank = Annotated[int, Field(ge=0, lt=10**7)]
Fact = Annotated[str, StringConstraints(max_length=1000)]
"""A name, a version or a digest."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

ElementType = Literal[
    "float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"
]

Lengths = tuple[Count, ...]

_SEAL = re.compile(r',"sha256":"([0-9a-f]{64})"\}')
_SEAL_LENGTH = len(',"sha256":""}') + 64


class Record(BaseModel):
    """Base of every record of a checkpoint."""

    # NaN would be written as null and not come back.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class FileEntry(Record):
    """The size and the hash of a file."""

    size_bytes: Count
    sha256: Sha256


def entry_of(content: bytes) -> FileEntry:
    """The entry of a file with this content."""
    return FileEntry(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


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
