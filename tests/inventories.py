"""Inventories of the tests' own models, which many files of tests need: each is probed once in a session."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from planc.inventory.load import load_inventory, save_cached_inventory
from tests.isolation import INVENTORIES


def save_inventory(folder: Path) -> None:
    """As planc's own, but a config.json that this session has probed before is not probed again."""
    shared = Path(os.environ.get(INVENTORIES) or _own().name)
    load_inventory(folder, cache_dir=shared)
    save_cached_inventory(folder, cache_dir=shared)


@cache
def _own() -> TemporaryDirectory[str]:
    """Of one process, for a script: another planc may have filled what lies elsewhere."""
    return TemporaryDirectory(prefix="inventories-")
