"""What can go wrong with a checkpoint, and `storage_errors`, which names what the system refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self


class CheckpointError(ValueError):
    """A checkpoint cannot be used here: `message` says what and where, `help` how to fix it.

    ValueError
    └── CheckpointError              the checkpoint and the run do not fit each other
        ├── CheckpointStorageError   the file system refused: full, read-only, absent
        └── CorruptCheckpointError   what is on disk is not what was saved
    """

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        # A note, so that an uncaught error shows the fix too.
        self.add_note(f"help: {help}")

    def __reduce__(self) -> tuple[partial[Self], tuple[str]]:
        # DCP sends a rank's exception to the others; the default would call the class without `help`.
        return partial(type(self), help=self.help), (self.message,)


class CheckpointStorageError(CheckpointError):
    """The file system refused to read or write a checkpoint."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint on disk is damaged, incomplete or not one of ours."""


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turns an OSError into a CheckpointStorageError: "`doing`: what the system said"."""
    try:
        yield
    except OSError as error:
        raise CheckpointStorageError(
            f"{doing}: {error}",
            help="see that the file system has room and that this user may read and write there",
        ) from error
