"""The inventory of a plan's own model class: cached by its code and config.json, or probed. No torch here."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from planc.extend.reference import Extension
from planc.hub.names import is_hub, parse_hub
from planc.inventory.codec import dumps, loads
from planc.inventory.files import (
    CONFIG_NAME,
    MAX_INVENTORY_BYTES,
    InventoryError,
    read_regular_file,
    write_atomically,
)
from planc.inventory.limits import require_possible
from planc.inventory.load import OnProbe, digest_if_present
from planc.inventory.schema import Inventory
from planc.inventory.versions import probe_versions

ProbeOwn = Callable[[Path, Extension], str]
"""Runs the code of a class, and returns its inventory as text. Raises InventoryError."""


def inventory_of_own(
    path: str,
    own: Extension,
    *,
    base: Path,
    cache_dir: Path,
    probe: ProbeOwn | None,
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
