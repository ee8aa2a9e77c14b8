"""The errors of the data pipeline."""

from __future__ import annotations

from planc.outgoing import message_text


class DataError(ValueError):
    """The user's data can't be used: `message` states what and where, `help` how to fix it."""

    code = ""
    """The page that explains more, if there is one."""

    def __init__(self, message: str, *, help: str) -> None:
        self.message, self.help = message_text(message), message_text(help)
        super().__init__(self.message)
        # A note, so an uncaught error shows the fix too.
        self.add_note(f"help: {self.help}")


class ChatRowError(DataError):
    """A row of conversations can't be used: `planc explain` shows what each of its keys means."""

    code = "P862"


class DataStorageError(DataError):
    """Prepared data can't be written or read: the file system is the cause, not the user's data."""


class StoredDataError(DataStorageError):
    """Prepared data is damaged or can't be read."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            help="list damage with `planc data verify`, delete the damaged directory and prepare it again",
        )
