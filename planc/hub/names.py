"""Models of the Hugging Face Hub: their names, and the location of their files on this machine.

The `huggingface_hub` library fills its cache; planc only reads it here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from planc.record import record

_SCHEME = "hf://"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@record
class HubModel:
    """A model of the hub at one commit."""

    repository: str
    revision: str

    def __str__(self) -> str:
        """The name in graphs and command lines: `hf://org/name@0123…`, like a path."""
        return f"{_SCHEME}{self.repository}@{self.revision}"

    @property
    def short(self) -> str:
        """The name in messages."""
        return f"{self.repository} at {self.revision[:12]}"

    @property
    def folder(self) -> Path:
        """The directory of this commit's files, once they are in the cache."""
        name = f"models--{self.repository.replace('/', '--')}"
        return hub_cache() / name / "snapshots" / self.revision


def is_repository(text: str) -> bool:
    """Whether a text names a repository, `org/name`."""
    return _REPOSITORY.fullmatch(text) is not None and ".." not in text


def is_commit(text: str) -> bool:
    """Whether a text is a commit's 40 hexadecimal digits; branches and tags can move."""
    return _COMMIT.fullmatch(text) is not None


def is_hub(path: str) -> bool:
    """Whether a path names a Hub model."""
    return path.startswith(_SCHEME)


def parse_hub(path: str) -> HubModel:
    """The model that `hf://org/name@commit` names. ValueError for any other text."""
    repository, at, revision = path.removeprefix(_SCHEME).partition("@")
    if not (is_hub(path) and at and is_repository(repository) and is_commit(revision)):
        raise ValueError(
            f"{path}: write a Hub model as hf://org/name@COMMIT, with the commit's 40 hexadecimal digits"
        )
    return HubModel(repository, revision)


def model_folder(path: str, *, base: Path) -> Path:
    """The folder with a model's files: a local one, from `base`, or the cache's for a model of the hub."""
    return parse_hub(path).folder if is_hub(path) else base / path


def hub_cache() -> Path:
    """The hub's cache, by the variables that `huggingface_hub` reads."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if found := os.environ.get(name):
            return Path(os.path.expandvars(found)).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(os.path.expandvars(home)).expanduser() / "hub"
