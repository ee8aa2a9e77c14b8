"""One hash of everything that decides which tokens a run sees, and in which order."""

from __future__ import annotations

import hashlib
import json
from typing import assert_never

from planc.runtime.data.packing import PackedDataset
from planc.runtime.data.sources import JsonLinesSource, PythonStdlibSource, Source, TextSource
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.tokenizers import Tokenizer


def data_fingerprint(spec: DataSpec, *, tokenizer: Tokenizer, dataset: PackedDataset) -> str:
    """A SHA-256 that changes with the source's description, tokenizer, packing, length, seed or any token.

    Equal on every machine: the base directory and the byte order are not in it.
    """
    parts = {
        "source": _description(spec.source),
        "tokenizer": tokenizer.digest,
        "packing": spec.packing,
        "sequence_length": dataset.sequence_length,
        "shuffle_seed": spec.shuffle_seed,
        "num_tokens": dataset.num_tokens,
        "tokens": _tokens_digest(dataset),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _description(source: Source) -> list[str]:
    match source:
        case TextSource(patterns):
            return ["text", *patterns]
        case JsonLinesSource(patterns, field):
            return ["jsonl", field, *patterns]
        case PythonStdlibSource():
            return ["python_stdlib"]
        case _:
            assert_never(source)


def _tokens_digest(dataset: PackedDataset) -> str:
    little_endian = dataset.tokens.dtype.newbyteorder("<")
    return hashlib.sha256(dataset.tokens.astype(little_endian, copy=False).data).hexdigest()
