"""A disk without a byte left, for tests."""

from __future__ import annotations

import contextlib
from pathlib import Path


def fill(folder: Path) -> None:
    """Leaves no byte on the file system of a folder."""
    for size in (2**20, 2**12, 1):
        with contextlib.suppress(OSError), (folder / f"filler-{size}").open("wb", buffering=0) as file:
            while file.write(bytes(size)) == size:
                pass
