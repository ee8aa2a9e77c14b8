"""The models that a check uses, each read once."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from planc.extend.reference import Extension
from planc.hub.names import is_hub, model_folder, parse_hub
from planc.hub.weights import UnreadableWeights, require_readable
from planc.inventory.codec import dumps, loads
from planc.inventory.files import (
    CONFIG_NAME,
    MAX_INVENTORY_BYTES,
    InventoryError,
    parse_json,
    read_config,
    read_regular_file,
    write_atomically,
)
from planc.inventory.limits import require_possible
from planc.inventory.load import OnProbe, digest_if_present, inventory_of
from planc.inventory.schema import Inventory
from planc.inventory.versions import probe_versions
from planc.vocab import CLASSIFIERS, Classes, Task


@dataclass(slots=True)
class KnownModels:
    """Inventories by a plan's `model.hf`. With `may_probe` false, only those that are saved or cached."""

    base: Path
    cache_dir: Path
    may_probe: bool = True
    found: dict[str, Inventory] = field(default_factory=dict)
    on_probe: OnProbe | None = None
    """Entered while a model is read for the first time, which takes seconds."""
    place: Callable[[str], str] = str
    """Return the place of a model's files: an absolute path, or a path as `model.hf` is."""
    probe_own: _ProbeOwn | None = None
    """Runs a model class of a plan's own code; None where that is not allowed."""

    def get(
        self,
        hf: str,
        *,
        own: Extension | None = None,
        with_weights: bool = False,
        task: Task | None = Task.CAUSAL_LM,
        classes: Classes | None = None,
    ) -> Inventory:
        """The inventory of a model, of the class of the plan's own code if it is `own`.

        `task` is the plan's, None for any, and `classes` are those of a classifier. InventoryError
        without one, for a class of another task, or for unreadable weights that are used.
        """
        key = key_of(hf, own=own, classes=classes)
        if key not in self.found:
            self.found[key] = self._read(hf, own, classes)
        if with_weights:
            _refuse_unreadable_weights(self.place(hf), base=self.base)
        if task is not None:
            _require_task(self.found[key], task)
        return self.found[key]

    def _read(self, hf: str, own: Extension | None, classes: Classes | None) -> Inventory:
        place, on_probe = self.place(hf), self.on_probe
        if own is not None:
            probe = self.probe_own if self.may_probe else None
            return _inventory_of_own(
                place, own, base=self.base, cache_dir=self.cache_dir, probe=probe, on_probe=on_probe
            )
        loaded = inventory_of(
            place,
            base=self.base,
            cache_dir=self.cache_dir,
            may_probe=self.may_probe,
            on_probe=on_probe,
            classes=classes,
        )
        return loaded.inventory

    def as_known(self) -> KnownModels:
        """A copy for checks that should not wait for a model."""
        return KnownModels(self.base, self.cache_dir, may_probe=False, found=self.found, place=self.place)


def key_of(hf: str, *, own: Extension | None = None, classes: Classes | None = None) -> str:
    """The key of a model among those found: classifiers of one model with other classes are others."""
    name = hf if own is None else f"{hf} by {own}"
    return name if classes is None else f"{name} as {classes}"


KINDS = {
    Task.CAUSAL_LM: "a causal language model",
    Task.MASKED_LM: "a masked language model",
    Task.SEQ2SEQ_LM: "an encoder-decoder",
    Task.IMAGE_TEXT_TO_TEXT: "a model that sees images",
    Task.SEQUENCE_CLASSIFICATION: "a classifier of sequences",
    Task.TOKEN_CLASSIFICATION: "a classifier of tokens",
    Task.EMBEDDING: "a model without a head",
}
"""Models by their task, for messages."""


def _require_task(inventory: Inventory, task: Task) -> None:
    """InventoryError if the model's class is of another task than the plan has."""
    if (task in CLASSIFIERS or task is Task.EMBEDDING) and inventory.task is not task:
        raise InventoryError(
            f"{inventory.architecture} is {KINDS[inventory.task]}, saved without a config.json",
            help="put the model's config.json next to its inventory.json",
        )
    if task is Task.IMAGE_TEXT_TO_TEXT and inventory.images is not None:
        return
    if inventory.task is not task:
        own = inventory.classes or inventory.task
        raise InventoryError(
            f"{inventory.architecture} is {KINDS[inventory.task]}, and the plan trains {KINDS[task]}",
            help=f"write `task = {own}` in `model`",
        )


def _refuse_unreadable_weights(path: str, *, base: Path) -> None:
    """InventoryError if transformers makes more of a plan's model directory than its plain weights. A
    directory with an inventory only does not show that."""
    folder = model_folder(path, base=base)
    if not (folder / CONFIG_NAME).exists():
        return
    config = parse_json(read_config(folder), name=str(folder / CONFIG_NAME))
    try:
        require_readable(folder, config if isinstance(config, dict) else {})
    except UnreadableWeights as error:
        raise InventoryError(error.message, help=error.help) from error


_ProbeOwn = Callable[[Path, Extension], str]
"""Runs the code of a class, and returns its inventory as text. Raises InventoryError."""


def _inventory_of_own(
    path: str,
    own: Extension,
    *,
    base: Path,
    cache_dir: Path,
    probe: _ProbeOwn | None,
    on_probe: OnProbe | None = None,
) -> Inventory:
    """The inventory of a class that a plan brings, with the config.json of the directory or Hub model `path`.

    Without `probe` only a cached one is used: its code does not run. InventoryError.
    """
    model_dir = parse_hub(path).folder if is_hub(path) else base / path
    digest = digest_if_present(model_dir)
    if digest is None:
        raise InventoryError(
            f"{model_dir} has no {CONFIG_NAME}", help=f"write the sizes of `{own.entry}` in one, as JSON"
        )
    entry = cache_dir / _name(own, digest)
    with contextlib.suppress(InventoryError):
        cached = loads(read_regular_file(entry, limit_bytes=MAX_INVENTORY_BYTES))
        if cached.config_digest == digest:
            return require_possible(cached, origin=own.file)
    if probe is None:
        raise InventoryError(
            f"`{own.entry}` is code of the plan, in {own.file}, which is not run unasked",
            help="read the file, then add `--run-extensions`: planc builds the class once to see its modules",
        )
    with contextlib.nullcontext() if on_probe is None else on_probe(model_dir):
        inventory = require_possible(loads(probe(model_dir, own).encode()), origin=own.file)
    with contextlib.suppress(OSError):
        cache_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(entry, text=dumps(inventory))
    return inventory


def _name(own: Extension, digest: str) -> str:
    parts = [digest, own.entry, own.digest, own.arguments]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"own-{key}-{probe_versions()}.json"
