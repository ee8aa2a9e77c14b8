"""Text to token ids: bytes, built in, or any `tokenizer.json`, alone or in a model's directory.

Neither runs code nor reaches the network.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from planc.runtime.cpus import num_cpus
from planc.runtime.data.chat import ChatTemplate
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import read_regular_file
from planc.runtime.data.tokenizer_folder import read_tokenizer_config
from planc.runtime.ranks.reads import Reads

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LoadedTokenizer

TokenIds = npt.NDArray[np.int64]
Spans = tuple[tuple[int, int], ...]
"""Parts of a text, as (start, stop) in characters."""


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
    def chat_template(self) -> ChatTemplate | None: ...
    def encode(self, texts: Sequence[str]) -> Iterator[TokenIds]:
        """The ids of each text."""
        ...

    def encode_targets(
        self, texts: Sequence[str], *, targets: Sequence[Spans]
    ) -> Iterator[tuple[TokenIds, npt.NDArray[np.bool_]]]:
        """The ids of each text, and whether each begins within one of the text's targets."""
        ...


_BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """Ids 0 to 255 are the bytes of the text in UTF-8; 256 ends a document."""

    name: str = _BYTES
    digest: str = _BYTES
    vocab_size: int = 257
    end_of_document: int = 256
    chat_template: None = None

    def encode(self, texts: Sequence[str]) -> Iterator[TokenIds]:
        for text in texts:
            yield np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int64)

    def encode_targets(
        self, texts: Sequence[str], *, targets: Sequence[Spans]
    ) -> Iterator[tuple[TokenIds, npt.NDArray[np.bool_]]]:
        for text, ids, spans in zip(texts, self.encode(texts), targets, strict=True):
            places = np.repeat(np.arange(len(text)), [len(character.encode("utf-8")) for character in text])
            yield ids, _within(places, spans)


@dataclass(frozen=True, slots=True)
class FileTokenizer:
    """A `tokenizer.json`. Special tokens in the text become their own ids; none are added."""

    name: str
    digest: str
    vocab_size: int
    end_of_document: int
    chat_template: ChatTemplate | None
    _loaded: LoadedTokenizer

    def encode(self, texts: Sequence[str]) -> Iterator[TokenIds]:
        for encoded in self._loaded.encode_batch_fast(list(texts), add_special_tokens=False):
            yield np.array(encoded.ids, dtype=np.int64)

    def encode_targets(
        self, texts: Sequence[str], *, targets: Sequence[Spans]
    ) -> Iterator[tuple[TokenIds, npt.NDArray[np.bool_]]]:
        batch = self._loaded.encode_batch(list(texts), add_special_tokens=False)
        for encoded, spans in zip(batch, targets, strict=True):
            places = np.array([start for start, _ in encoded.offsets], dtype=np.int64)
            yield np.array(encoded.ids, dtype=np.int64), _within(places, spans)


def _within(places: npt.NDArray[np.int64], spans: Spans) -> npt.NDArray[np.bool_]:
    is_target = np.zeros(len(places), dtype=np.bool_)
    for start, stop in spans:
        is_target |= (places >= start) & (places < stop)
    return is_target


def share_cpus(num_processes: int) -> None:
    """Limit this process's tokenization to its share of the CPUs of `num_processes` such processes.

    Otherwise each would use all of them. Variables that are set already are kept. Call it before anything is
    tokenized.
    """
    share = max(1, num_cpus() // num_processes)
    os.environ.setdefault("RAYON_NUM_THREADS", str(share))
    # Threads are used in any case; if this is unset, the library warns at every later fork of this process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def load_tokenizer(
    tokenizer: str, *, base: Path, end_of_document: str | None, reads: Reads | None = None
) -> Tokenizer:
    """As `read_tokenizer`, ready to use."""
    return read_tokenizer(tokenizer, base=base, end_of_document=end_of_document, reads=reads).load()


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

    def load(self) -> Tokenizer:
        """The tokenizer. Raises DataError if its files are invalid."""
        if self.is_bytes:
            return ByteTokenizer()
        loaded = _parsed(self.content, name=self.name)
        # The last user of the file may have saved both in it; either would change documents silently.
        loaded.no_truncation()
        loaded.no_padding()
        vocabulary = loaded.get_vocab(with_added_tokens=True)
        return FileTokenizer(
            name=self.name,
            digest=self.digest,
            vocab_size=max(vocabulary.values(), default=-1) + 1,
            end_of_document=_end_of_document_id(loaded, self.end_of_document, name=self.name),
            chat_template=self.chat_template,
            _loaded=loaded,
        )


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


def _parsed(content: bytes, *, name: str) -> LoadedTokenizer:
    """The tokenizer that `content` describes. Raises DataError if it is invalid, or draws random numbers."""
    try:
        # Lazy: the base install, and plans on bytes, do not need this library.
        from tokenizers import Tokenizer, models
    except ImportError as error:
        raise DataError(
            f"reading {name} needs the tokenizers library", help="install it: pip install 'planc[run]'"
        ) from error
    try:
        loaded = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception, whatever is wrong with the file
        raise DataError(
            f"{name} is not a tokenizer.json: {error}", help="write it with the tokenizers library's save()"
        ) from error
    if isinstance(loaded.model, models.BPE) and loaded.model.dropout:
        raise DataError(
            f"{name} drops merges at random (dropout {loaded.model.dropout}), so ranks would disagree",
            help='set "dropout" to null in its "model"',
        )
    return loaded


_ENDS_OF_DOCUMENT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<|eos|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 (spelled this way by the models that use it)
)
"""The tokens that published causal language models put after each document of their training text."""


def _end_of_document_id(loaded: LoadedTokenizer, token: str | None, *, name: str) -> int:
    if token is None:
        token = _known_end_of_document(loaded, name=name)
    token_id: int | None = loaded.token_to_id(token)
    if token_id is None:
        raise DataError(f'{name} has no token "{token}"', help="set end_of_document to one of its tokens")
    return token_id


def _known_end_of_document(loaded: LoadedTokenizer, *, name: str) -> str:
    """The only known end of document among the special tokens. Raises DataError for none or several."""
    # Only special ones: some vocabularies hold "</s>" as the HTML tag.
    special = {token.content for token in loaded.get_added_tokens_decoder().values() if token.special}
    found = tuple(token for token in _ENDS_OF_DOCUMENT if token in special)
    if len(found) != 1:
        fault = f"several ends of document: {', '.join(found)}" if found else "no known end of document"
        raise DataError(f"{name} has {fault}", help="set end_of_document to one of its tokens")
    return found[0]
