"""The index of prepared data: what it was made of, what it holds, and the hash of every file."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from planc.runtime.checkpoint_format.records import Count, FileEntry, Sha256, seal, unseal
from planc.runtime.data.columns import Totals
from planc.runtime.data.prepared.layout import BLOCK_BYTES, HEADER_BYTES
from planc.strict_json import loads

FORMAT_VERSION: Literal[1] = 1
MAX_INDEX_BYTES = 1 << 30

ArrayName = Literal[
    "tokens",
    "document_starts",
    "sampled_starts",
    "starts",
    "is_target",
    "classes",
    "token_classes",
    "token_types",
    "images",
    "image_starts",
]
Layout = Literal["joined", "cut", "whole"]
StoredType = Literal["uint8", "uint16", "uint32", "int32", "int64", "bool"]
Text = Annotated[str, StringConstraints(max_length=100_000)]
NonEmptySize = Annotated[int, Field(ge=BLOCK_BYTES, multiple_of=BLOCK_BYTES, lt=2**40)]

_ARRAYS: dict[Layout, set[str]] = {
    "joined": {"tokens", "document_starts", "sampled_starts"},
    "cut": {"tokens", "starts"},
    "whole": {"tokens", "starts", "document_starts", "sampled_starts"},
}
_OF_TOKENS: tuple[ArrayName, ...] = ("is_target", "token_classes", "token_types")
"""Arrays with a value for each token, where a source has them."""
_OF_SEQUENCES: dict[ArrayName, int] = {"classes": 1, "image_starts": 0}
"""Arrays with a value for each sequence, and how many fewer than `starts` they have."""
_ITEM_BYTES: dict[StoredType, int] = {"uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "int64": 8, "bool": 1}


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Recipe(_Record):
    """All that decides the tokens, except the content of the source's files.

    `layout` "joined" is every document end to end, whatever the sequence length; "cut" is one document per
    sequence, and "whole" as many as fit. `tokenizer` is the SHA-256 of each of its files by name, `versions`
    of the libraries used.
    """

    source: tuple[Text, ...]
    layout: Layout
    sequence_length: Count | None
    too_long: Literal["truncate", "skip"] | None
    held_out: Text | None = None
    tokenizer: tuple[tuple[Text, Sha256], ...]
    end_of_document: Text | None
    begin_of_document: Text | None = None
    images: Text | None = None
    """The token and the shape of images; None for text alone."""
    versions: tuple[tuple[Text, Text], ...]
    format_version: Literal[1] = FORMAT_VERSION


class SourceEntry(_Record):
    """A file of the source."""

    name: Text
    size_bytes: Count
    sha256: Sha256


class ReadEntry(_Record):
    """One read, as a rank that tokenizes for itself records it; see `planc.runtime.ranks.reads`."""

    kind: Literal["file", "text"]
    name: Text
    value: Sha256


class Shard(_Record):
    """One file of an array, and the file with its blocks' CRC-32."""

    data: FileEntry
    checks: FileEntry


class ArrayEntry(_Record):
    """An array over all its files. `sha256` is of the elements alone, in little-endian order."""

    dtype: StoredType
    length: Count
    max: Count
    sha256: Sha256
    shard_bytes: NonEmptySize
    shards: tuple[Shard, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        """ValueError unless the files' sizes are those of `length` elements."""
        left = self.length * _ITEM_BYTES[self.dtype]
        for number, shard in enumerate(self.shards):
            held = min(left, self.shard_bytes)
            left -= held
            blocks = -(-held // BLOCK_BYTES)
            sizes = (shard.data.size_bytes, shard.checks.size_bytes)
            if held == 0 or sizes != (HEADER_BYTES + held, HEADER_BYTES + 4 * blocks):
                raise ValueError(f"file {number} of an array has another size than its elements")
        if left:
            raise ValueError("an array has more elements than its files")
        return self


class Index(_Record):
    """Prepared data."""

    recipe: Recipe
    planc_version: Text
    name: Text
    files: tuple[SourceEntry, ...]
    reads: tuple[ReadEntry, ...]
    arrays: dict[ArrayName, ArrayEntry]
    num_documents: Count
    num_text_bytes: Count
    num_dropped_tokens: Count
    num_truncated: Count = 0
    num_too_long: Count = 0
    num_unlabeled: Count = 0
    num_left_by_pairs: Count = 0
    num_equal_pairs: Count = 0
    end_of_document: Count
    """The token id."""
    marks: Text = ""
    """The tokens at the start and end of its documents, in words."""
    left_out: tuple[Text, ...] = ()
    """The messages that name the bad documents which it was prepared without."""

    @property
    def totals(self) -> Totals:
        """The counts of the source's documents."""
        return Totals(**{one.name: getattr(self, one.name) for one in fields(Totals)})

    @property
    def size_bytes(self) -> int:
        """All files of all arrays."""
        shards = (shard for array in self.arrays.values() for shard in array.shards)
        return sum(shard.data.size_bytes + shard.checks.size_bytes for shard in shards)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """ValueError unless the arrays are those of the layout, with lengths that fit each other."""
        if {*self.arrays} - {*_OF_TOKENS, *_OF_SEQUENCES, "images"} != _ARRAYS[self.recipe.layout]:
            raise ValueError(f"its arrays are {', '.join(sorted(self.arrays))}")
        for name in _OF_TOKENS:
            if name in self.arrays and self.arrays[name].length != self.arrays["tokens"].length:
                raise ValueError(f"{name} and tokens have different lengths")
        for name, extra in _OF_SEQUENCES.items():
            array = self.arrays.get(name)
            if array is not None and array.length + extra != self.arrays["starts"].length:
                raise ValueError(f"{name} and starts have different lengths")
        return self


_PLAIN = re.compile(r"[^A-Za-z0-9_]+")


def plain(text: str) -> str:
    """A text as part of a directory's name."""
    return _PLAIN.sub("-", text).strip("-")[:40] or "data"


def index_text(index: Index) -> str:
    """The text of an index file, with a seal over all of it."""
    return seal(index)


def parse_index(text: str) -> Index:
    """The index of a file's text. ValueError with one line if it is damaged or invalid."""
    sealed, is_whole = unseal(text)
    if not is_whole:
        raise ValueError("its seal does not match its text")
    try:
        # Python's own JSON accepts a key twice.
        loads(sealed)
        return Index.model_validate_json(sealed)
    except ValueError as error:
        raise ValueError(str(error).splitlines()[0]) from error
