"""The entries of a run directory, by name, and what a run does with those that it can't use.

Entries that are not training state never stop a run: they are renamed, and the rename is reported.
Checkpoints and exports are left to `obstacles`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from planc.runtime.files.plain_files import kind_of, set_aside

PLAN_NAME = "plan.json"
KEPT_PLANS = "plans"
METRICS_NAME = "metrics.jsonl"
STATUS_NAME = "status.json"
LOCK_NAME = ".lock"
CHECKPOINTS = "checkpoints"
LOGS = "logs"
RANKS = "ranks"
REFERENCES = "references"
PROFILE = "profile"
EXPORT = "export"
TENSORBOARD = "tensorboard"
WANDB_ID = "wandb.id"

_FILES = (PLAN_NAME, METRICS_NAME, STATUS_NAME, WANDB_ID)
_FOLDERS_OF_FILES = (KEPT_PLANS, LOGS, RANKS, REFERENCES, PROFILE)
# Other programs fill these; W&B puts its own links into its directory.
_FOREIGN_FOLDERS = (TENSORBOARD, "wandb")

MAX_PLAN_BYTES = 2**30
"""The size limit of a compiled plan; one of 4,096 ranks has less than a megabyte."""


def set_unusable_aside(folder: Path) -> Iterator[str]:
    """Rename every entry that is not what a run keeps under its name; one line per rename.

    OSError if the system refuses a rename.
    """
    yield from _aside(folder, names=_FILES, wanted="file")
    yield from _aside(folder, names=(*_FOLDERS_OF_FILES, *_FOREIGN_FOLDERS), wanted="directory")
    for name in _FOLDERS_OF_FILES:
        if kind_of(folder / name) == "directory":
            yield from _aside(folder / name, names=sorted(os.listdir(folder / name)), wanted="file")


def _aside(folder: Path, *, names: tuple[str, ...] | list[str], wanted: str) -> Iterator[str]:
    for name in names:
        path = folder / name
        problem = _problem(path, wanted=wanted)
        if problem and ".damaged-" not in name:
            yield f"{path} {problem}: renamed to {set_aside(path).name}"


def _problem(path: Path, *, wanted: str) -> str:
    kind = kind_of(path)
    if kind is None:
        return ""
    if kind != wanted:
        return f"is a {kind}, not a plain {wanted}"
    if wanted == "file" and not os.access(path, os.R_OK | os.W_OK):
        return "can't be read and written by this user"
    return ""
