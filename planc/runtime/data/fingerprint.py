"""One hash of everything that decides which tokens a run sees, and in which order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from planc.data_sources import Source
from planc.data_sources.kinds import ExtensionSource, TransformedSource
from planc.extend.reference import Extension
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.packing import Stored
from planc.runtime.data.padded import ImageDataset
from planc.runtime.data.prepared.stored_array import StoredArray
from planc.runtime.data.spec import DataSpec


def data_fingerprint(spec: DataSpec, *, tokenizer_digest: str, dataset: Dataset) -> str:
    """A SHA-256 that changes with the source's description, tokenizer, packing, length, seed or any token.

    Equal on every machine: the base directory and the byte order are not in it.
    """
    parts = {
        "source": description(spec.source),
        "tokenizer": tokenizer_digest,
        "packing": spec.packing,
        "sequence_length": dataset.sequence_length,
        "shuffle_seed": spec.shuffle_seed,
        "num_tokens": dataset.num_tokens,
        **({"masking": asdict(spec.masking)} if spec.masking is not None else {}),
        **({"padding_id": spec.padding_id} if spec.padding_id is not None else {}),
        **_of_images(spec, dataset),
        **({"held_out": spec.held_out.text} if spec.held_out is not None else {}),
        **{name: _digest(array) for name, array in dataset.digested()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _of_images(spec: DataSpec, dataset: Dataset) -> dict[str, object]:
    if spec.images is None or not isinstance(dataset, ImageDataset) or dataset.preprocessor is None:
        return {}
    return {"images_as": [spec.images.token, asdict(spec.images.shape), dataset.preprocessor.digest]}


def mixture_fingerprint(fingerprints: Sequence[str], *, weights: Sequence[str]) -> str:
    """A SHA-256 of the sources' fingerprints and weights, in their order. Labels are not in it."""
    parts = {"sources": list(fingerprints), "weights": list(weights)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def description(source: Source) -> list[str]:
    """The kind of a source and its arguments, as in the plan."""
    match source:
        case TransformedSource(rows, code):
            return [*description(rows), source.kind, *_of_code(code)]
        case ExtensionSource(code):
            return [source.kind, *_of_code(code)]
        case _:
            pass
    parts: list[str] = [source.kind]
    for argument in source.argument_names():
        value = getattr(source, argument)
        # Only patterns, of which every source has at most one list, need no bounds.
        is_list = isinstance(value, tuple) and argument != "patterns"
        value = json.dumps(value) if is_list or isinstance(value, int) else value
        parts.extend(value if isinstance(value, tuple) else (value or "",))
    return parts


def _of_code(code: Extension) -> list[str]:
    return [code.entry, code.digest, json.dumps(code.arguments)]


def _digest(array: Stored) -> str:
    if isinstance(array, StoredArray):
        return array.sha256
    little_endian = array.dtype.newbyteorder("<")
    return hashlib.sha256(array.astype(little_endian, copy=False).data).hexdigest()
