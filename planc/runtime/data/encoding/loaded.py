"""A tokenizer as `AutoTokenizer` loads it: ids, special tokens and decoding are transformers' own."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from planc.hub.tokenizer_files import TOKENIZER
from planc.runtime.data.encoding.isolation import only_reading, set_up
from planc.runtime.data.encoding.parsed import parsed, require_no_dropout
from planc.runtime.data.errors import DataError
from planc.runtime.data.tokenizer_folder import Files, is_alone

_OVERRIDES = ("__call__", "_encode_plus")
"""The methods of a transformers tokenizer through which text passes before the tokenizers library gets it."""
_READERS = {"sentencepiece": "sentencepiece", "google": "protobuf", "tiktoken": "tiktoken"}
"""Modules that read `.model` files, and the names they are installed by."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer that is ready to use. It adds no tokens at the ends of a text.

    `backend` is the tokenizers library's, if transformers passes text to it unchanged; `whole` is
    transformers' own, None for a tokenizer.json alone, to which transformers would add nothing. `ids` is the
    vocabulary, added tokens included. `special_tokens` has tokens by their role: `eos_token`, ...
    """

    name: str
    backend: Tokenizer | None
    whole: Any
    ids: Mapping[str, int]
    special: Sequence[str]
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.ids.values(), default=-1) + 1

    @property
    def special_ids(self) -> list[int]:
        """The ids of the tokens that the files call special, by their role or by a mark, ascending."""
        ids = {self.ids[token] for token in self.special if token in self.ids}
        return sorted(ids | {*self.whole.all_special_ids} if self.whole is not None else ids)

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """The ids of each text."""
        if self.backend is not None:
            return [one.ids for one in self.backend.encode_batch_fast(texts, add_special_tokens=False)]
        return [self.whole(text, add_special_tokens=False)["input_ids"] for text in texts]

    def of_words(self, texts: Sequence[Sequence[str]]) -> list[tuple[Sequence[int], Sequence[int | None]]]:
        """The ids of each text of words, and the number of the word of each token. Raises DataError."""
        options: dict[str, Any] = {"add_special_tokens": False}
        if self.backend is not None:
            made = self.backend.encode_batch(
                [list(words) for words in texts], is_pretokenized=True, **options
            )
            return [(encoding.ids, encoding.word_ids) for encoding in made]
        if not self.whole.is_fast:
            raise DataError(
                f"{self.name} does not tell to which word a token belongs",
                help="use a tokenizer with a tokenizer.json",
            )
        whole = [self.whole(list(words), is_split_into_words=True, **options) for words in texts]
        return [(encoding["input_ids"], encoding.word_ids()) for encoding in whole]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """The ids of two texts with those that the tokenizer itself puts around them, and the type of each:
        zeros if the tokenizer makes none."""
        if self.whole is None:
            assert self.backend is not None, "one of both is there"
            encoding = self.backend.encode(first, second)
            return encoding.ids, encoding.type_ids
        made = self.whole(first, second)
        ids = list(made["input_ids"])
        return ids, list(made.get("token_type_ids", [0] * len(ids)))

    def encodings(self, texts: Sequence[str]) -> list[Encoding]:
        """The tokens of each text with the characters that they hold. Raises DataError."""
        if self.backend is not None:
            return self.backend.encode_batch(texts, add_special_tokens=False)
        if not self.whole.is_fast:
            raise DataError(
                f"{self.name} does not tell which characters a token holds",
                help="use a tokenizer with a tokenizer.json",
            )
        return [self.whole(text, add_special_tokens=False).encodings[0] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        if self.whole is not None:
            return str(self.whole.decode(ids))
        assert self.backend is not None, "one of both is there"
        return str(self.backend.decode(ids, skip_special_tokens=False))

    def encode_whole(self, text: str) -> list[int]:
        """The ids of a text with those that the tokenizer itself puts around it."""
        if self.whole is not None:
            return list(self.whole(text)["input_ids"])
        assert self.backend is not None, "one of both is there"
        return list(self.backend.encode(text).ids)


def load_tokenizer(files: Files, *, name: str, folder: Path) -> LoadedTokenizer:
    """The tokenizer of `files`, which are in the directory `folder` as well. Raises DataError."""
    if is_alone(files):
        alone = parsed(files[TOKENIZER], name=name)
        return LoadedTokenizer(
            name, alone, None, alone.get_vocab(), _special_of(alone.get_added_tokens_decoder())
        )
    whole = _from_folder(files, name=name, folder=folder)
    backend = getattr(whole, "_tokenizer", None)
    if backend is not None:
        require_no_dropout(backend, name=name)
        # The last user of the file may have saved both in it; either would change documents silently.
        backend.no_truncation()
        backend.no_padding()
    ids = {**whole.get_vocab(), **whole.added_tokens_encoder}
    special = [*whole.all_special_tokens, *_special_of(whole.added_tokens_decoder)]
    direct = backend if _passes_text_unchanged(whole) else None
    loaded = LoadedTokenizer(name, direct, whole, ids, special, whole.special_tokens_map)
    _require_text(loaded)
    return loaded


def _from_folder(files: Files, *, name: str, folder: Path) -> Any:
    """Load the files with `AutoTokenizer`. Raises DataError."""
    set_up(folder / "no-cache")
    try:
        # It takes a second to import, which a tokenizer.json alone needs not wait for.
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise DataError(
            f"reading {name} needs the transformers library", help="install it: pip install 'planc[run]'"
        ) from error
    try:
        with only_reading(folder):
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except MemoryError:
        raise
    # The libraries raise any error, whatever is wrong with the files, or panic.
    except BaseException as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise DataError(
            f"{name} is not a tokenizer that transformers loads: {reason}", help=_remedy(files)
        ) from error


def _remedy(files: Files) -> str:
    """Return the help for a tokenizer that does not load."""
    missing = [library for module, library in _READERS.items() if importlib.util.find_spec(module) is None]
    if missing and TOKENIZER not in files and any(path.endswith((".model", ".spm")) for path in files):
        return f"install the libraries that read its vocabulary: pip install {' '.join(missing)}"
    return "write it with save_pretrained(), and check that AutoTokenizer loads it without remote code"


def _special_of(added: Mapping[int, Any]) -> list[str]:
    return [token.content for token in added.values() if token.special]


def _passes_text_unchanged(whole: Any) -> bool:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    kind = type(whole)
    return isinstance(whole, TokenizersBackend) and all(
        getattr(kind, name) is getattr(TokenizersBackend, name) for name in _OVERRIDES
    )


def _require_text(loaded: LoadedTokenizer) -> None:
    """DataError for a tokenizer that takes more than text, such as the boxes of words on a page."""
    try:
        loaded.encode(["a"])
    except MemoryError:
        raise
    except BaseException as error:
        raise DataError(
            f"{loaded.name} ({type(loaded.whole).__name__}) does not tokenize plain text: {error}",
            help="use another tokenizer",
        ) from error
