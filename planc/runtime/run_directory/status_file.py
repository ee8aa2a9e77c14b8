"""A small file that can be replaced when the disk is full: room for the next text is held beside it.

What ends a run is often a full disk, and how it ended must still be found. The room is a file of its own,
whose blocks are there already: the text goes into those, and the file takes the place of the old one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from planc.runtime.run_directory import plain_files

ROOM_BYTES = 16 * 2**10
"""More than a status takes."""


def replace_text(path: Path, text: str, *, is_last: bool = False) -> None:
    """Replaces a file in one step, so that a reader sees the old text or the new; OSError if it cannot be.

    Several threads may write the same file. After a text that `is_last` no room is held for another.
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
    """Whether the text could take the place of the file in blocks that were held for it."""
    taken = _own(room)
    try:
        # One of several threads or processes gets it.
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
    """Takes the room, unless it is there."""
    if room.exists():
        return
    # Written rather than asked for: not every file system allocates before, and all write.
    plain_files.replace(room, (bytes(ROOM_BYTES),))


def _own(path: Path) -> Path:
    """A name beside the file that no other thread and no other process takes."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
