"""One hash of everything that decides which tokens a run sees, and in which order."""

from __future__ import annotations

import hashlib
import json
from typing import assert_never

import numpy as np
import numpy.typing as npt

from planc.runtime.data.chat import ChatSource
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.hf_datasets import HfDatasetSource, HfHubSource
from planc.runtime.data.sources import JsonLinesSource, PythonStdlibSource, TextSource
from planc.runtime.data.spec import DataSpec, Source
from planc.runtime.data.tokenizers import Tokenizer


def data_fingerprint(spec: DataSpec, *, tokenizer: Tokenizer, dataset: Dataset) -> str:
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
        **{name: _digest(array) for name, array in dataset.digested()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _description(source: Source) -> list[str]:
    match source:
        case TextSource(patterns):
            return ["text", *patterns]
        case JsonLinesSource(patterns, field):
            return ["jsonl", field, *patterns]
        case ChatSource(patterns, field, train_on):
            return ["chat", field, train_on, *patterns]
        case HfDatasetSource(patterns, field):
            return ["hf_dataset", field, *patterns]
        case HfHubSource(repository, revision, split, subset, field):
            return ["hf_hub", repository, revision, split, subset or "", field]
        case PythonStdlibSource():
            return ["python_stdlib"]
        case _:
            assert_never(source)


def _digest(array: npt.NDArray[np.generic]) -> str:
    little_endian = array.dtype.newbyteorder("<")
    return hashlib.sha256(array.astype(little_endian, copy=False).data).hexdigest()
