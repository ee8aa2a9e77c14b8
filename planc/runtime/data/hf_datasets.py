"""Hugging Face datasets: local files, directories, or a pinned commit of the Hub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HfDatasetSource:
    """Local files and dataset directories; each record's `field` is a document.

    `patterns` are globs of files relative to a base directory, directories, or one `hf://datasets/...`.
    `split` is a split or a part of one, as `datasets` writes it; `subset` is a configuration of a directory.
    """

    patterns: tuple[str, ...]
    field: str = "text"
    split: str = "train"
    subset: str | None = None


@dataclass(frozen=True, slots=True)
class HfHubSource:
    """A dataset on the Hub at one commit. `revision` is the commit's 40 hexadecimal digits."""

    repository: str
    revision: str
    split: str = "train"
    subset: str | None = None
    field: str = "text"
