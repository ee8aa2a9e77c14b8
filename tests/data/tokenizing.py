"""Tokenizers ready to use, and the ids of texts, for tests."""

from __future__ import annotations

from pathlib import Path

from planc.runtime.data.encoding.client import Fault
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizers import Tokenizer, read_tokenizer


def load_tokenizer(
    tokenizer: str, *, base: Path, end_of_document: str | None, begin_of_document: str | None = None
) -> Tokenizer:
    return read_tokenizer(
        tokenizer, base=base, end_of_document=end_of_document, begin_of_document=begin_of_document
    ).load()


def document(text: str, *, origin: str = "here") -> Document:
    return Document(origin, text, len(text.encode("utf-8")))


def ids_of(tokenizer: Tokenizer, *texts: str) -> list[list[int]]:
    found = list(tokenizer.encode([document(text) for text in texts]))
    assert len(found) == len(texts)
    ids = []
    for one in found:
        assert not isinstance(one, Fault), one
        ids.append(one.ids.tolist())
    return ids
