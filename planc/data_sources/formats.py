"""Files of datasets by the suffix of their names."""

from __future__ import annotations

DATASET_SUFFIXES = (".parquet", ".arrow", ".json", ".jsonl")
COMPRESSED_SUFFIXES = (".gz", ".zst", ".xz", ".bz2")


def without_compression(name: str) -> str:
    """A file's name without the suffix of a compression: `a.jsonl` for `a.jsonl.gz`."""
    return next((name.removesuffix(one) for one in COMPRESSED_SUFFIXES if name.endswith(one)), name)
