"""Conversations: lists of messages, which the tokenizer's chat template renders as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.errors import DataError
from planc.runtime.data.records import split_records
from planc.runtime.data.sampling import Sampling
from planc.runtime.data.sources import Document, field_of
from planc.runtime.ranks.reads import Reads

TrainOn = Literal["assistant", "all"]
Messages = list[dict[str, Any]]

START, STOP = "\ufdd0", "\ufdd1"
"""A template's marks around an answer: noncharacters, which Unicode keeps out of all text."""


@dataclass(frozen=True, slots=True)
class ChatSource:
    """Records whose `field` is a list of messages, each with a role and a content.

    `patterns`, `split` and `subset` are those of a HfDatasetSource.
    `train_on` "assistant" trains on the assistant's messages only, "all" on the whole conversation.
    """

    patterns: tuple[str, ...]
    field: str = "messages"
    train_on: TrainOn = "assistant"
    split: str = "train"
    subset: str | None = None


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template's text and its file. `special_tokens` are the variables it may use, such as `eos_token`.

    They are the loaded tokenizer's, so they are empty until it is loaded.
    """

    origin: str
    text: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that no template has rendered yet, and where it came from."""

    origin: str
    content: bytes
    """The messages in JSON."""
    train_on: TrainOn

    @property
    def num_bytes(self) -> int:
        return len(self.content)


AnyDocument = Document | Conversation


def conversations(
    source: ChatSource,
    *,
    base: Path,
    reads: Reads | None = None,
    bad: BadDocuments | None = None,
    sample: Sampling | None = None,
) -> Iterator[Conversation]:
    """The conversations of a source. Raises DataError that names the bad line."""
    bad = bad or BadDocuments()
    records = split_records(
        source.patterns,
        split=source.split,
        subset=source.subset,
        base=base,
        reads=reads,
        bad=bad,
        sample=sample,
    )
    for origin, record in records:
        for content in bad.usable(_messages, record, field=source.field, origin=origin):
            yield Conversation(origin, content, source.train_on)


def _messages(record: Mapping[str, object], *, field: str, origin: str) -> bytes:
    """The messages of a record in JSON. Raises DataError."""
    value = field_of(record, field=field, origin=origin)
    is_list = isinstance(value, list) and bool(value)
    if not is_list or not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in value):  # type: ignore[attr-defined]
        raise DataError(
            f"{origin} has no list of messages",
            help='write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]',
        )
    text = json.dumps(value, ensure_ascii=False)
    if START in text or STOP in text:
        raise DataError(f"{origin} contains U+FDD0 or U+FDD1, which no text may contain", help="remove them")
    # A template may leave out what holds a lone surrogate: the text that it makes is checked.
    return text.encode("utf-8", "surrogatepass")
