"""The plans and models that ship with planc, and models as the command line names them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import planc
from planc.cli.support import plans
from planc.cli.support.exits import UsageError
from planc.diagnostics.suggest import nearest
from planc.hub.names import HubModel, hub_cache, is_commit, is_hub, is_repository, parse_hub
from planc.hub.user_dirs import cache_dir
from planc.inventory.files import CONFIG_NAME, INVENTORY_NAME, InventoryError
from planc.inventory.load import inventory_of
from planc.inventory.schema import Inventory
from planc.record import record
from planc.vocab import Classes

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


_BYTES_VOCABULARY = 300
"""A smaller vocabulary is one of bytes."""


@record
class NamedModel:
    """A model, and how a plan in `folder` writes it and its tokenizer."""

    name: str
    """A short one, for file names."""
    written: str
    key: str
    """The way to ask for an inventory."""
    files: Path
    """The path of its files, which may not exist."""
    home: str
    """The directory or Hub model that has its inventory."""
    shipped: bool = False

    def inventory(self, classes: Classes | None = None) -> Inventory:
        """Its inventory, of a classifier with these classes if they are given. UsageError without one."""
        try:
            return inventory_of(
                self.home,
                base=Path(),
                cache_dir=cache_dir(),
                on_probe=plans.announce_probe,
                classes=classes,
            ).inventory
        except InventoryError as error:
            raise UsageError(f"{error.message}\n{error.help}") from None

    def tokenizer(self, folder: Path, *, vocab_size: int, is_chat: bool) -> tuple[str, Path | None]:
        """The call that a plan in `folder` writes, and the file that must exist for it; None for bytes."""
        file = self.files / "tokenizer.json"
        if vocab_size < _BYTES_VOCABULARY and not is_chat and not file.exists():
            return "bytes", None
        home = folder / "tokenizers" / self.name if is_hub(self.key) else self.files
        path = home if is_chat else home / "tokenizer.json"
        return f'file("{_relative(path, folder)}")', home / "tokenizer.json"

    def has_weights(self) -> bool:
        """Whether the model has safetensors; those of a Hub model are fetched when a run starts."""
        return is_hub(self.key) or any(self.files.glob("*.safetensors"))

    def write(self, folder: Path) -> tuple[Path, ...]:
        """Copy a model that ships next to the plan; its path there is what the plan names."""
        return copy_shipped(model_files(self.name), to=folder) if self.shipped else ()


def named_model(name: str, *, folder: Path) -> NamedModel:
    """The model of a name, for a plan in `folder`. UsageError for a name of none, or without an inventory."""
    path = Path(name)
    if path.is_dir():
        return _local(path, folder)
    if path.is_file():
        raise UsageError(_file(path))
    if is_hub(name) or is_repository(name):
        return _of_hub(name)
    short = name.removeprefix("plans/models/").removeprefix("models/")
    if short in shipped_models():
        home = str(shipped_folder() / "models" / short)
        return NamedModel(
            short, f'"models/{short}"', f"models/{short}", folder / "models" / short, home, shipped=True
        )
    raise UsageError(_unknown(name, path))


def _file(path: Path) -> str:
    """The error for a file that is given as a model."""
    folder = path.parent
    if not _is_model(folder):
        return f"{path} is a file: name the directory of a model's {CONFIG_NAME}"
    return f"{path} is a file: name its directory, `{folder}`"


def _is_model(folder: Path) -> bool:
    return any((folder / one).is_file() for one in (CONFIG_NAME, INVENTORY_NAME))


def _unknown(name: str, path: Path) -> str:
    near = (*_near_folders(path), *nearest(name, shipped_models(), limit=3))
    if near:
        return f"no model `{name}`; did you mean {' or '.join(f'`{one}`' for one in near[:3])}?"
    return (
        f"no model `{name}`: name a directory with a {CONFIG_NAME}, a Hub model as hf://org/name@COMMIT, "
        f"or one that ships with planc: {', '.join(_large())}"
    )


def _near_folders(path: Path) -> tuple[str, ...]:
    """The models with a name like this one's, in the same directory."""
    try:
        folders = {one.name: one for one in sorted(path.parent.iterdir()) if _is_model(one)}
    except OSError:
        return ()
    return tuple(str(folders[one]) for one in nearest(path.name, folders, limit=3))


def _large() -> tuple[str, ...]:
    """The shipped models that are not made for tests."""
    return tuple(name for name in shipped_models() if not name.startswith("tiny-") or name == "tiny-llama")


def _local(path: Path, folder: Path) -> NamedModel:
    if not _is_model(path):
        raise UsageError(f"{path} has no {CONFIG_NAME}: name the directory that a model was saved to")
    written = _relative(path, folder)
    return NamedModel(path.resolve().name, f'"{written}"', written, path, str(path))


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _of_hub(name: str) -> NamedModel:
    try:
        model = parse_hub(name) if "@" in name or is_hub(name) else _cached(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    written = f'hub("{model.repository}", revision = "{model.revision}")'
    short = model.repository.rpartition("/")[2].lower()
    return NamedModel(short, written, str(model), model.folder, str(model))


def _cached(repository: str) -> HubModel:
    """The commit of a repository's main branch as the Hub's cache on this machine has it."""
    ref = hub_cache() / f"models--{repository.replace('/', '--')}" / "refs" / "main"
    try:
        commit = ref.read_text(encoding="utf-8").strip()
    except OSError:
        commit = ""
    if not is_commit(commit):
        near = _near_folders(Path(repository))
        if near:
            meant = " or ".join(f"`{one}`" for one in near)
            raise UsageError(f"no directory `{repository}`; did you mean {meant}?")
        raise UsageError(
            f"`{repository}` is not a directory here, and for a Hub model planc needs its commit: "
            f"write hf://{repository}@COMMIT, with the 40 hexadecimal digits from its page of commits"
        )
    return HubModel(repository, commit)
