"""Errors of checkpoints, and `storage_errors`, which reports what the system refused."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from planc.outgoing import message_text

_DAMAGE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EFBIG, errno.EIO})


class CheckpointError(ValueError):
    """A checkpoint can't be used here: `message` states what and where, `help` how to fix it.

    ValueError
    └── CheckpointError              the checkpoint and the run do not fit each other
        ├── CheckpointStorageError   the file system refused: full, read-only, absent
        └── CorruptCheckpointError   what is on disk is not what was saved
    """

    def __init__(self, message: str, *, help: str) -> None:
        self.message, self.help = message_text(message), message_text(help)
        super().__init__(self.message)
        # A note, so an uncaught error shows the fix too.
        self.add_note(f"help: {self.help}")

    def __reduce__(self) -> tuple[partial[Self], tuple[str]]:
        # DCP and process pools send exceptions; the default would call the class without `help`.
        return partial(type(self), help=self.help), (self.message,)


class CheckpointStorageError(CheckpointError):
    """The file system refused to read or write a checkpoint."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint on disk is damaged, incomplete or not planc's."""


def refuse_unread(error: OSError, path: Path) -> None:
    """CheckpointStorageError unless it shows damage: a file that is absent, not plain, or on a broken disk.

    Any other file may be sound, and its checkpoint the one to resume from, once this user can read it.
    """
    if error.errno not in _DAMAGE:
        raise CheckpointStorageError(
            f"cannot read {path}: {error.strerror}",
            help="run again once this user can read it: the checkpoint may be sound",
        ) from error


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turn an OSError into a CheckpointStorageError: "`doing`: the system's message"."""
    try:
        yield
    except OSError as error:
        raise CheckpointStorageError(
            f"{doing}: {error}",
            help="check that the file system has free space and that this user may read and write there",
        ) from error
