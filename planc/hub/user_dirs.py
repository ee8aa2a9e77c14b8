"""The directories that planc keeps for a user, outside of any run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The directory of model inventories: `$PLANC_CACHE`, or `planc` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PLANC_CACHE") or Path(base) / "planc")


def data_dir() -> Path:
    """The directory of prepared data: `$PLANC_DATA`, or `data` in the cache directory."""
    return Path(os.environ.get("PLANC_DATA") or cache_dir() / "data")
