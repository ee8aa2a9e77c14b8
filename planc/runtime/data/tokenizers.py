"""Text to token ids: bytes, built in, or any `tokenizer.json`, alone or in a model's directory.

Neither runs code nor reaches the network.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np

from planc.runtime.cpus import num_cpus
from planc.runtime.data.chat import AnyDocument, ChatTemplate, Conversation
from planc.runtime.data.encoding.client import Encoder, Fault, Loading, Tokens
from planc.runtime.data.encoding.limits import LIMITS, Limits
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import read_regular_file
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizer_folder import read_tokenizer_config
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
    def encode(self, documents: Sequence[AnyDocument]) -> Iterator[Tokens | Fault]:
        """The tokens of each document; they are tokenized together."""
        ...

    def close(self) -> None:
        """Free what it holds."""


_BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """Ids 0 to 255 are the bytes of the text in UTF-8; 256 ends a document."""

    name: str = _BYTES
    digest: str = _BYTES
    vocab_size: int = 257
    end_of_document: int = 256

    def encode(self, documents: Sequence[AnyDocument]) -> Iterator[Tokens | Fault]:
        for document in documents:
            assert isinstance(document, Document), "conversations have a template, and bytes none"
            ids = np.frombuffer(document.text.encode("utf-8"), dtype=np.uint8).astype(np.int64)
            yield Tokens(ids, None, document.num_bytes)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class FileTokenizer:
    """A `tokenizer.json`. Special tokens in the text become their own ids; none are added."""

    name: str
    digest: str
    encoder: Encoder

    @property
    def vocab_size(self) -> int:
        return self.encoder.vocab_size

    @property
    def end_of_document(self) -> int:
        return self.encoder.end_of_document

    def encode(self, documents: Sequence[AnyDocument]) -> Iterator[Tokens | Fault]:
        """All documents of a source are texts, or all are conversations."""
        if isinstance(documents[0], Conversation):
            talks = [document for document in documents if isinstance(document, Conversation)]
            yield from self.encoder.encode([talk.content for talk in talks], train_on=documents[0].train_on)
        else:
            texts = [document for document in documents if isinstance(document, Document)]
            yield from self.encoder.encode([document.text.encode("utf-8") for document in texts])

    def close(self) -> None:
        self.encoder.close()


def share_cpus(num_processes: int) -> None:
    """Limit this process's tokenization to its share of the CPUs of `num_processes` such processes.

    Otherwise each would use all of them. Variables that are set already are kept. Call it before anything is
    tokenized.
    """
    share = max(1, num_cpus() // num_processes)
    os.environ.setdefault("RAYON_NUM_THREADS", str(share))
    # Threads are used in any case; if this is unset, the library warns at every later fork of this process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The content of a tokenizer's files, not parsed yet: parsing a large vocabulary takes a second.

    `end_of_document` is the token that the plan or the files name; None for the only known one.
    """

    name: str
    digest: str
    content: bytes = b""
    end_of_document: str | None = None
    chat_template: ChatTemplate | None = None

    @property
    def is_bytes(self) -> bool:
        return self.digest == _BYTES

    def load(self, limits: Limits = LIMITS) -> Tokenizer:
        """The tokenizer, which must be closed. Raises DataError if its files are invalid."""
        if self.is_bytes:
            return ByteTokenizer()
        loading = Loading(self.name, self.content, self.end_of_document, self.chat_template)
        return FileTokenizer(self.name, self.digest, Encoder(loading, limits))


def read_tokenizer(
    tokenizer: str, *, base: Path, end_of_document: str | None, reads: Reads | None = None
) -> TokenizerFiles:
    """The files of a tokenizer: a `tokenizer.json` or its directory, relative to `base`; none for "bytes".

    `end_of_document` names the token that ends a document; None uses the `eos_token` of the
    directory's tokenizer_config.json, or else the only known end of document that the file marks special.
    Raises DataError.
    """
    if tokenizer != "bytes":
        return _read_files(tokenizer, base=base, end_of_document=end_of_document, reads=reads)
    if end_of_document is not None:
        raise DataError(
            f'the bytes tokenizer has no token "{end_of_document}"',
            help="leave end_of_document out: bytes end a document with id 256",
        )
    return TokenizerFiles(_BYTES, _BYTES)


def _read_files(name: str, *, base: Path, end_of_document: str | None, reads: Reads | None) -> TokenizerFiles:
    is_folder = (base / name).is_dir()
    folder = name if is_folder else str(PurePosixPath(name).parent)
    config = read_tokenizer_config(base / folder, name=folder, reads=reads)
    if is_folder:
        name = f"{name}/tokenizer.json"
        end_of_document = end_of_document or config.special_tokens.get("eos_token")
    content = read_regular_file(base / name, name=name, reads=reads)
    digest = hashlib.sha256(content).hexdigest()
    return TokenizerFiles(name, digest, content, end_of_document, config.chat_template)
