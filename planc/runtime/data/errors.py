"""The errors of the data pipeline."""

from __future__ import annotations


class DataError(ValueError):
    """The user's data can't be used: `message` states what and where, `help` how to fix it."""

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        # A note, so an uncaught error shows the fix too.
        self.add_note(f"help: {help}")


class DataStorageError(DataError):
    """Prepared data can't be written or read: the file system is the cause, not the user's data."""


class StoredDataError(DataStorageError):
    """Prepared data is damaged or can't be read."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            help="list damage with `planc data verify`, delete the damaged directory and prepare it again",
        )
