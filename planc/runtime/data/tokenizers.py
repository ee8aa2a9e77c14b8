"""Text to token ids: bytes, built in, or any tokenizer that transformers loads from files.

Neither runs code nor reaches the network.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol
from zlib import crc32

import numpy as np

from planc.runtime.cpus import num_cpus
from planc.runtime.data import tokenizer_folder
from planc.runtime.data.chat import AnyDocument, Conversation, Templates
from planc.runtime.data.encoding.client import Fault, Kind, Loading, Tokens
from planc.runtime.data.encoding.limits import LIMITS, Limits
from planc.runtime.data.encoding.pool import Batch, Encoders, Store
from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import IGNORED_LABEL, Document, TextPair, Words
from planc.runtime.ranks.reads import Reads


class Tokenizer(Protocol):
    """A tokenizer, as packing uses it. Equal digests mean equal ids for every text."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def vocab_size(self) -> int:
        """One more than the largest id, including ids without a token."""
        ...

    @property
    def end_of_document(self) -> int: ...
    @property
    def after(self) -> tuple[int, ...]:
        """The tokens after a text that has a class."""
        ...

    @property
    def mask_id(self) -> int | None:
        """The token that hides another; None if there is none."""
        ...

    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def marks(self) -> str:
        """Describe the tokens at a document's start and end; empty if there is no choice."""
        ...

    def encode(self, documents: Iterable[AnyDocument]) -> Iterator[Tokens | Fault]:
        """The tokens of each document, in order; some are read ahead."""
        ...

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids, special tokens included. Raises DataError."""
        ...

    def close(self) -> None:
        """Free what it holds."""


_BYTES = "bytes"
_BATCH_BYTES, _MAX_BATCH_BYTES = 1 << 17, 1 << 19
"""Bytes of text: the least of a batch, and about half of its mean; and the most, but for its last document.

A tokenizer's results take many times as much."""
_NUM_PROCESSES = "RAYON_NUM_THREADS"
_MAX_PROCESSES = 32
"""More would wait for the process that reads, and hold memory."""
_OTHER_TOKENIZER = 'name a tokenizer with a chat template: `tokenizer = file("...")`'
_NUMBER = re.compile("[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """Ids 0 to 255 are the bytes of the text in UTF-8; 256 ends a document, and 257 hides a byte."""

    name: str = _BYTES
    digest: str = _BYTES
    vocab_size: int = 257
    end_of_document: int = 256
    after: tuple[int, ...] = ()
    mask_id: int = 257
    special_ids: frozenset[int] = frozenset((256, 257))
    marks: str = ""

    def encode(self, documents: Iterable[AnyDocument]) -> Iterator[Tokens | Fault]:
        for document in documents:
            if isinstance(document, Conversation):
                yield _bytes_of(document)
            elif isinstance(document, Words):
                yield _bytes_of_words(document)
            elif isinstance(document, TextPair):
                yield _bytes_of_pair(document, between=self.end_of_document)
            elif isinstance(document, Document):
                ids = np.frombuffer(document.text.encode("utf-8"), dtype=np.uint8).astype(np.int64)
                yield Tokens(ids, None, document.num_bytes)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        end = self.end_of_document
        contents = (b"".join(b"<end>" if one == end else bytes((one,)) for one in ids) for ids in sequences)
        return [content.decode("utf-8", "replace") for content in contents]

    def close(self) -> None:
        pass


def _bytes_of(document: Conversation) -> Tokens | Fault:
    """The bytes of a prompt and its completion."""
    talk = json.loads(document.content)
    if "completion" not in talk:
        return Fault("is messages, and the bytes tokenizer has no chat template", _OTHER_TOKENIZER)
    try:
        prompt, completion = (talk[key].encode("utf-8") for key in ("prompt", "completion"))
    except UnicodeEncodeError:
        return Fault("has a lone surrogate, which is not text", "remove it")
    ids = np.frombuffer(prompt + completion, dtype=np.uint8).astype(np.int64)
    is_target = np.arange(len(ids)) >= (0 if talk["target"] == "all" else len(prompt))
    trains_end = bool(talk.get("trains_end", True))
    return Tokens(ids, is_target, document.num_bytes, trains_end=trains_end, stops=trains_end)


def _bytes_of_words(document: Words) -> Tokens:
    """The bytes of words with a space between them."""
    ids = np.frombuffer(" ".join(document.words).encode("utf-8"), dtype=np.uint8).astype(np.int64)
    classes, place = np.full(len(ids), IGNORED_LABEL), 0
    for word, number in zip(document.words, document.classes, strict=True):
        if word:
            classes[place] = number
        place += len(word.encode("utf-8")) + 1
    return Tokens(ids, None, document.num_bytes, classes=classes)


def _bytes_of_pair(document: TextPair, *, between: int) -> Tokens:
    """The bytes of two texts with the end of a document between them; the second has type 1."""
    first, second = (text.encode("utf-8") for text in document.texts)
    start, end = len(first) + 1, len(first) + 1 + len(second)
    types = (np.arange(end) >= start).astype(np.int64)
    ids = np.array([*first, between, *second], dtype=np.int64)
    return Tokens(ids, None, document.num_bytes, types=types, spans=(0, len(first), start, end))


@dataclass(frozen=True, slots=True)
class FileTokenizer:
    """A tokenizer in files. Special tokens in the text become their own ids.

    A text begins with the ids that the plan asks for, but has no end yet. A conversation has what its
    template writes.
    """

    name: str
    digest: str
    encoders: Encoders

    @property
    def vocab_size(self) -> int:
        return self.encoders.vocab_size

    @property
    def end_of_document(self) -> int:
        return self.encoders.end_of_document

    @property
    def after(self) -> tuple[int, ...]:
        return self.encoders.after

    @property
    def mask_id(self) -> int | None:
        return self.encoders.mask_id

    @property
    def marks(self) -> str:
        return self.encoders.marks

    def encode(self, documents: Iterable[AnyDocument]) -> Iterator[Tokens | Fault]:
        """All documents of a source are of one kind."""
        for found in self.encoders.encode(_batches(documents)):
            yield from found

    @property
    def special_ids(self) -> frozenset[int]:
        return self.encoders.special_ids

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids, special tokens included. Raises DataError."""
        return self.encoders.decode(sequences)

    def close(self) -> None:
        self.encoders.close()


_KINDS: Mapping[type, Kind] = {
    Document: "texts",
    TextPair: "text_pairs",
    Words: "words",
    Conversation: "conversations",
}
"""The kinds of documents that a tokenizer takes."""


def _batches(documents: Iterable[AnyDocument]) -> Iterator[Batch]:
    """Documents that one process tokenizes together, in order, all of one kind.

    Where a batch ends is decided by its last document, so documents that are inserted, changed or removed
    leave later batches as they were: what is kept of them is found again.
    """
    items: list[bytes] = []
    num_bytes = 0
    kind: Kind = "texts"
    for document in documents:
        kind = _KINDS[type(document)]
        item = document.text.encode("utf-8") if isinstance(document, Document) else document.content
        items.append(item)
        num_bytes += len(item)
        is_end = crc32(item) / 2**32 < len(item) / _BATCH_BYTES
        if (num_bytes >= _BATCH_BYTES and is_end) or num_bytes >= _MAX_BATCH_BYTES:
            yield Batch(items, kind)
            items, num_bytes = [], 0
    if items:
        yield Batch(items, kind)


def share_cpus(num_sharing: int) -> None:
    """Limit what this process starts to tokenize to its share of the CPUs of `num_sharing` such processes.

    A variable that is set already is kept. Call it before a tokenizer is loaded.
    """
    os.environ.setdefault(_NUM_PROCESSES, str(min(_MAX_PROCESSES, max(1, num_cpus() // num_sharing))))


def _num_processes() -> int:
    """Return the number of processes that tokenize at once, as the tokenizers library sets its threads.

    DataError if the variable is malformed. 0 is as without it, as in that library.
    """
    text = os.environ.get(_NUM_PROCESSES, "0")
    if not _NUMBER.fullmatch(text):
        raise DataError(
            f"{_NUM_PROCESSES} is not a number of processes that tokenize: {text!r}",
            help="set it to a positive integer, or unset it",
        )
    return int(text) or min(_MAX_PROCESSES, num_cpus())


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The content of a tokenizer's files, not parsed yet: parsing a large vocabulary takes a second.

    `end_of_document` is the token that the plan names; None for the tokenizer's own. `begin_of_document` is
    one too, "auto" for what the tokenizer itself puts before a text, or None for nothing.
    """

    name: str
    digest: str
    files: tokenizer_folder.Files = field(default_factory=dict)
    end_of_document: str | None = None
    chat_templates: Templates = field(default_factory=dict)
    begin_of_document: str | None = None
    has_classes: bool = False
    """Whether texts have classes: they end as the tokenizer itself ends them."""
    by_word: bool = False
    """Whether their words have them: words are tokenized apart."""
    by_pair: bool = False
    """Whether two texts have one together."""

    @property
    def is_bytes(self) -> bool:
        return self.digest == _BYTES

    @property
    def libraries(self) -> tuple[str, ...]:
        """The libraries that decide the ids, with the files."""
        if self.is_bytes:
            return ()
        return ("tokenizers",) if tokenizer_folder.is_alone(self.files) else ("tokenizers", "transformers")

    def load(
        self, limits: Limits = LIMITS, *, num_processes: int | None = None, store: Store | None = None
    ) -> Tokenizer:
        """The tokenizer, which must be closed. Raises DataError if its files are invalid.

        It works in `num_processes`; None is one for each CPU of this process's share. What is in the `store`
        is not tokenized again.
        """
        if self.is_bytes:
            return ByteTokenizer()
        loading = Loading(
            *(self.name, self.files, self.end_of_document, self.chat_templates),
            *(self.begin_of_document, self.has_classes, self.by_word, self.by_pair),
        )
        number = num_processes or _num_processes()
        encoders = Encoders(loading, limits, num_processes=number, store=store)
        return FileTokenizer(self.name, self.digest, encoders)


def read_tokenizer(
    tokenizer: str,
    *,
    base: Path,
    end_of_document: str | None,
    begin_of_document: str | None = None,
    reads: Reads | None = None,
) -> TokenizerFiles:
    """The files of a tokenizer: a directory, its tokenizer.json or a file alone, relative to `base`.

    "bytes" has none. `end_of_document` names the token that ends a document; None uses the tokenizer's
    `eos_token`, or else the only known end of document among its special tokens. `begin_of_document` names
    the token that begins one, or is "auto" for what the tokenizer itself puts before a text.

    Raises DataError.
    """
    if tokenizer != "bytes":
        files = tokenizer_folder.read_tokenizer_files(base / tokenizer, name=tokenizer, reads=reads)
        folder = tokenizer if (base / tokenizer).is_dir() else str(PurePosixPath(tokenizer).parent)
        templates = tokenizer_folder.chat_templates_of(files, name=folder)
        return TokenizerFiles(
            tokenizer, tokenizer_folder.digest_of(files), files, end_of_document, templates, begin_of_document
        )
    if end_of_document is not None:
        raise DataError(
            f'the bytes tokenizer has no token "{end_of_document}"',
            help="leave end_of_document out: bytes end a document with id 256",
        )
    return TokenizerFiles(_BYTES, _BYTES)
