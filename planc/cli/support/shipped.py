"""The plans and models that ship with planc."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import planc
from planc.cli.support.exits import UsageError
from planc.diagnostics.suggest import nearest
from planc.record import record

_FOLDER = "plans"
_MODELS = "models"
_MODEL_FILES = ("config.json", "inventory.json")
_QUOTED = re.compile(r'"((?:\.\./)?(?:base|presets|models)/[^"*]+)"')
"""Paths of other shipped files in a plan."""
TASKS = {
    "start here": "train on four CPU ranks, on the Python standard library's sources",
    "fine-tune": "from pretrained weights, on your data",
    "pretrain": "a plan for each model, on the mesh that suits it",
    "published runs": "meshes and batches of published torchtitan runs",
    "launch shapes": "one small model on every kind of mesh, on CPUs",
}


@record
class Example:
    """A plan that ships: its name, task, and first comment."""

    name: str
    task: str
    summary: str
    path: Path


def shipped_folder() -> Path:
    """The directory of the plans: inside the package in a wheel, next to it in the checkout."""
    package = Path(planc.__file__).parent
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent / _FOLDER


def shipped_models() -> tuple[str, ...]:
    """The names of the models that ship, without weights."""
    return tuple(sorted(path.parent.name for path in (shipped_folder() / _MODELS).glob("*/config.json")))


def examples() -> tuple[Example, ...]:
    """Every plan that ships, by task."""
    found = [_example(path) for path in sorted(shipped_folder().glob("*.plan"))]
    order = list(TASKS)
    return tuple(sorted(found, key=lambda one: (order.index(one.task), one.name)))


def example(name: str) -> Example:
    """The example of this name. UsageError for another name."""
    every = {one.name: one for one in examples()}
    wanted = name.removesuffix(".plan")
    if wanted not in every:
        near = nearest(wanted, tuple(every), limit=3)
        meant = f": did you mean {' or '.join(f'`{one}`' for one in near)}?" if near else ""
        raise UsageError(f"planc ships no plan `{name}`{meant or ': `planc new --example` lists them'}")
    return every[wanted]


def needed_files(path: Path) -> Iterator[Path]:
    """The shipped files that a plan includes, its model among them, relative to the directory of plans."""
    folder = shipped_folder()
    for name in dict.fromkeys(_QUOTED.findall(path.read_text(encoding="utf-8"))):
        found = Path(os.path.normpath(path.parent / name))
        if found.is_dir():
            yield from (found.relative_to(folder) / one for one in _MODEL_FILES)
        elif found.suffix == ".plan" and found.is_file():
            yield found.relative_to(folder)
            yield from needed_files(found)


def copy_shipped(files: Iterator[Path], *, to: Path) -> tuple[Path, ...]:
    """Copy shipped files below a directory, and return those that were not there.

    UsageError for a file that is there with another content.
    """
    written = []
    for name in dict.fromkeys(files):
        source, target = shipped_folder() / name, to / name
        if target.exists():
            if target.read_bytes() != source.read_bytes():
                raise UsageError(f"{target} differs from the one that planc ships: choose another directory")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        written.append(target)
    return tuple(written)


def model_files(name: str) -> Iterator[Path]:
    """The files of a shipped model, relative to the directory of plans."""
    return (Path(_MODELS) / name / one for one in _MODEL_FILES)


def _example(path: Path) -> Example:
    text = path.read_text(encoding="utf-8")
    return Example(path.stem, _task(path.stem, text), _summary(text), path)


def _task(name: str, text: str) -> str:
    if name == "quickstart":
        return "start here"
    if name.startswith("launch-"):
        return "launch shapes"
    if "weights = pretrained" in text:
        return "fine-tune"
    return "published runs" if "presets/torchtitan.plan" in text else "pretrain"


def _summary(text: str) -> str:
    """The first sentence of the comment at the top."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return re.split(r"(?<=[a-z0-9)])[.:](?: |$)", " ".join(lines), maxsplit=1)[0]
