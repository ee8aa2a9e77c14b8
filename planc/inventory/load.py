"""The inventory of a model directory: saved, cached, or probed. torch is imported only to probe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from planc.hub.names import is_hub, parse_hub
from planc.inventory.codec import dumps, loads
from planc.inventory.config_limits import require_sane, router_loss
from planc.inventory.files import (
    CONFIG_NAME,
    INVENTORY_NAME,
    MAX_INVENTORY_BYTES,
    InventoryError,
    config_digest,
    parse_json,
    read_config,
    read_regular_file,
    write_atomically,
)
from planc.inventory.limits import refuse_remote_code, require_possible
from planc.inventory.rope import Rope, rope_of
from planc.inventory.schema import Inventory
from planc.inventory.versions import probe_versions
from planc.record import record
from planc.vocab import CLASSIFIERS, Classes, Task

__all__ = [
    "InventoryError",
    "LibraryMissing",
    "LoadedInventory",
    "OnProbe",
    "inventory_of",
    "load_inventory",
    "save_cached_inventory",
    "save_inventory",
]

_OR_HUB = 'or name a commit of a Hub model: `hub("org/name", revision = "<40 hexadecimal digits>")`'


class LibraryMissing(InventoryError):
    """An inventory must be made, but a library for that is not installed."""


OnProbe = Callable[[Path], contextlib.AbstractContextManager[object]]
"""Called with the directory of a model before it is read for the first time; entered until it is."""


@record
class LoadedInventory:
    """An inventory and where it came from; `path` is the file that was read."""

    inventory: Inventory
    origin: Literal["saved", "cached", "probed"]
    path: Path


def inventory_of(
    path: str,
    *,
    base: Path,
    cache_dir: Path,
    may_probe: bool = True,
    on_probe: OnProbe | None = None,
    classes: Classes | None = None,
) -> LoadedInventory:
    """The inventory of a plan's model: a directory relative to `base`, or a Hub model.

    With `classes` it is that of a classifier, whose head is new unless config.json names one of its task.

    Nothing is downloaded: InventoryError also if the Hub cache has no config.json of it yet.
    """
    options: dict[str, Any] = {"cache_dir": cache_dir, "may_probe": may_probe, "on_probe": on_probe}
    if not is_hub(path):
        return load_inventory(base / path, classes=classes, **options)
    model = parse_hub(path)
    if not (model.folder / CONFIG_NAME).exists():
        raise InventoryError(
            f"{model.short} is not on this machine: {model.folder / CONFIG_NAME} is missing",
            help=f"download its config.json: planc inventory {model}",
        )
    return load_inventory(model.folder, classes=classes, **options)


def load_inventory(
    model_dir: Path,
    *,
    cache_dir: Path,
    may_probe: bool = True,
    on_probe: OnProbe | None = None,
    classes: Classes | None = None,
) -> LoadedInventory:
    """The inventory of the model in `model_dir`. InventoryError if it can't be obtained.

    A saved inventory.json comes first and must match the config.json next to it; a directory may have only
    an inventory. Then the cache, by the content of config.json and the releases of planc, torch and
    transformers; then a probe on the meta device, which needs torch and fills the cache, unless `may_probe`
    is false. A probe takes seconds: `on_probe` gets the directory, and is entered while that lasts. A cache
    that can't be written only costs time.
    """
    new = None if classes is None or _has_head(model_dir, classes.task) else classes
    found = _loaded(model_dir, cache_dir=cache_dir, may_probe=may_probe, on_probe=on_probe, classes=new)
    return replace(found, inventory=_with_config(found.inventory, model_dir))


def _has_head(model_dir: Path, task: Task) -> bool:
    """Whether config.json names a classifier of this task, which has a head; also without a config.json, as
    then nothing else can be read. An embedding is of another class than config.json may name."""
    if digest_if_present(model_dir) is None:
        return True
    raw = parse_json(read_config(model_dir), name=str(model_dir / CONFIG_NAME))
    named = raw.get("architectures") if isinstance(raw, dict) else None
    ends = CLASSIFIERS.get(task)
    return isinstance(named, list) and ends is not None and any(str(name).endswith(ends) for name in named)


def _loaded(
    model_dir: Path, *, cache_dir: Path, may_probe: bool, on_probe: OnProbe | None, classes: Classes | None
) -> LoadedInventory:
    config_path, saved_path = model_dir / CONFIG_NAME, model_dir / INVENTORY_NAME
    digest = digest_if_present(model_dir)
    if saved_path.exists() and classes is None:
        return LoadedInventory(_load_saved(saved_path, digest=digest), "saved", saved_path)
    if digest is None:
        raise InventoryError(
            f"{model_dir} has neither {CONFIG_NAME} nor {INVENTORY_NAME}",
            help=f"put the model's config.json there, {_OR_HUB}",
        )
    if (cached := _load_cached(cache_dir, digest=digest, classes=classes)) is not None:
        require_possible(cached.inventory, origin=str(config_path))
        return cached
    if not may_probe:
        raise InventoryError(
            f"there is neither a saved nor a cached inventory of {model_dir}",
            help=f"planc inventory {model_dir}",
        )
    with contextlib.nullcontext() if on_probe is None else on_probe(model_dir):
        inventory = require_possible(_probe(model_dir, classes=classes), origin=str(config_path))
    with contextlib.suppress(OSError):
        cache_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(_entry(cache_dir, inventory.config_digest, classes), text=dumps(inventory))
    return LoadedInventory(inventory, "probed", config_path)


def _with_config(inventory: Inventory, model_dir: Path) -> Inventory:
    """The inventory with what config.json states and a saved one does not hold: rotary embeddings, and the
    weight of a loss for routers."""
    if inventory.rope is not None or not (model_dir / CONFIG_NAME).exists():
        return inventory
    config = parse_json(read_config(model_dir), name=str(model_dir / CONFIG_NAME))
    # A class may have them by default.
    has_any = any("RotaryEmbedding" in module.class_name for module in inventory.modules)
    stated = rope_of(config) if isinstance(config, dict) else None
    rope = stated or (Rope() if has_any else None)
    weight = router_loss(config, fields=inventory.added_losses) if isinstance(config, dict) else None
    return replace(inventory, rope=rope, router_loss=weight)


def save_inventory(model_dir: Path) -> Path:
    """Write inventory.json into `model_dir` from a fresh probe, and return its path. Needs torch."""
    digest_if_present(model_dir)
    return _save(_probe(model_dir), model_dir)


def save_cached_inventory(model_dir: Path, *, cache_dir: Path) -> Path | None:
    """Save as `save_inventory` does, from the cache for this config.json; None if it has none."""
    digest = digest_if_present(model_dir)
    cached = _load_cached(cache_dir, digest=digest) if digest else None
    if cached is None:
        return None
    return _save(require_possible(cached.inventory, origin=str(model_dir / CONFIG_NAME)), model_dir)


def _save(inventory: Inventory, model_dir: Path) -> Path:
    path = model_dir / INVENTORY_NAME
    try:
        write_atomically(path, text=dumps(inventory))
    except OSError as error:
        raise InventoryError(
            f"{path} cannot be written: {error.strerror}", help="check the directory's permissions"
        ) from error
    return path


def digest_if_present(model_dir: Path) -> str | None:
    """The digest of a directory's config.json, whose values are checked; None without one."""
    help = f"name a local directory with the model's config.json, {_OR_HUB}"
    try:
        is_directory, has_config = model_dir.is_dir(), (model_dir / CONFIG_NAME).exists()
    except OSError as error:  # a forbidden parent, a name too long
        raise InventoryError(f"{model_dir} cannot be read: {error.strerror}", help=help) from error
    if not is_directory:
        raise InventoryError(f"{model_dir} is not a directory", help=help)
    if not has_config:
        return None
    content = read_config(model_dir)
    path = model_dir / CONFIG_NAME
    # A saved or cached inventory does not show remote code.
    refuse_remote_code(content, path=path)
    require_sane(parse_json(content, name=str(path)), text=content.decode("utf-8"), path=path)
    return config_digest(content)


def _load_saved(path: Path, *, digest: str | None) -> Inventory:
    remedy = f"write it again: planc inventory {path.parent} --save"
    content = read_regular_file(path, limit_bytes=MAX_INVENTORY_BYTES)
    try:
        inventory = loads(content)
    except InventoryError as error:
        raise InventoryError(f"{path}: {error.message}", help=remedy) from error
    if digest is not None and inventory.config_digest != digest:
        raise InventoryError(f"{path} was made from a different {CONFIG_NAME}", help=remedy)
    return require_possible(inventory, origin=str(path))


def _load_cached(cache_dir: Path, *, digest: str, classes: Classes | None = None) -> LoadedInventory | None:
    """The cached inventory; None if a probe must (re)write it, as after a change of the format.

    With `classes` it is that of a classifier with a new head.

    Without torch or transformers, the newest of this configuration, whichever release wrote it.
    """
    versions = probe_versions()
    paths = (
        [_entry(cache_dir, digest, classes)] if versions else _newest_first(cache_dir.glob(f"{digest}*.json"))
    )
    for path in paths:
        with contextlib.suppress(InventoryError):
            inventory = loads(read_regular_file(path, limit_bytes=MAX_INVENTORY_BYTES))
            has_other = bool(inventory.new_head) or inventory.task is Task.EMBEDDING
            new = inventory.classes if has_other else None
            if inventory.config_digest == digest and new == classes:
                return LoadedInventory(inventory, "cached", path)
    return None


def _entry(cache_dir: Path, digest: str, classes: Classes | None) -> Path:
    head = "" if classes is None else f"-{classes.task}-{classes.labels}"
    return cache_dir / f"{digest}{head}-{probe_versions()}.json"


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def _probe(model_dir: Path, *, classes: Classes | None = None) -> Inventory:
    try:
        # torch and transformers take seconds to import, and a light install has none of them.
        from planc.inventory.probe.probe import probe
    except ModuleNotFoundError as error:
        # Their own dependencies may be missing too, in an incomplete install.
        if error.name is None or error.name.partition(".")[0] == "planc":
            raise
        raise LibraryMissing(
            f"an inventory of {model_dir} must be made, but {error.name} is not installed",
            help=f"pip install 'planc[run]', or save it where that is installed: "
            f"planc inventory {model_dir} --save",
        ) from error
    return _with_config(probe(model_dir, classes=classes), model_dir)
