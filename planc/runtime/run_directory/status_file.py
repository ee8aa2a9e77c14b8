"""A small file that can be replaced even if the disk is full: space for the next text is reserved.

A run often ends because the disk is full, and its status must still be written. The reserve is a file of its
own, with blocks on disk: the text is written into those, and this file then replaces the old one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from planc.runtime.files import plain_files

ROOM_BYTES = 16 * 2**10
"""More than a status needs."""


def replace_text(path: Path, text: str, *, is_last: bool = False) -> None:
    """Replace a file in one step: a reader sees the old text or the new one. OSError if that fails.

    Several threads may write the same file. After a text that `is_last`, no space is reserved.
    """
    room = path.with_name(f".{path.name}.room")
    try:
        plain_files.replace(path, (text.encode(),))
    except OSError:
        if not _replace_from(room, path, text):
            raise
    with contextlib.suppress(OSError):
        if is_last:
            room.unlink(missing_ok=True)
        else:
            _hold(room)


def _replace_from(room: Path, path: Path, text: str) -> bool:
    """Whether the text replaced the file, in the blocks that were reserved for it."""
    taken = _own(room)
    try:
        # Only one of several threads or processes gets it.
        room.replace(taken)
        with plain_files.open_to_overwrite(taken) as file:
            file.write(text)
            file.truncate()
        taken.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            taken.unlink()
        return False
    return True


def _hold(room: Path) -> None:
    """Reserve the space, unless it is reserved already."""
    if room.exists():
        return
    # Written rather than preallocated, which not every file system supports.
    plain_files.replace(room, (bytes(ROOM_BYTES),))


def _own(path: Path) -> Path:
    """A name in the file's directory that no other thread or process uses, on any machine."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}")
