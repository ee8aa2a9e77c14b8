"""Documents that can't be used: an error, or set aside up to a limit that the plan states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from planc.runtime.data.errors import DataError

Made = TypeVar("Made")
MAX_MESSAGE = 1_000
"""Characters of a message that are kept: it may quote the document."""


@dataclass(slots=True)
class BadDocuments:
    """The documents of one source that are left out, each by the message that names it."""

    limit: int = 0
    messages: list[str] = field(default_factory=list)

    def add(self, error: DataError) -> None:
        """Set a document aside. Raises DataError beyond the limit."""
        number = len(self.messages) + 1
        if number > self.limit:
            before = f", after {self.limit:_} that `skip_bad` leaves out" if self.limit else ""
            help = f"{error.help}; or write `skip_bad = {number}` in `data`, to leave it out"
            raise DataError(f"{error.message}{before}", help=help) from error
        self.messages.append(error.message[:MAX_MESSAGE])

    def usable(self, make: Callable[..., Made], *arguments: object, **named: object) -> Iterator[Made]:
        """What `make` returns; nothing if it raises a DataError, which sets the document aside."""
        try:
            made = make(*arguments, **named)
        except DataError as error:
            self.add(error)
            return
        yield made
