"""Documents that can't be used: an error, or set aside up to a limit that the plan states."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeVar

from planc.runtime.data.errors import DataError

Made = TypeVar("Made")
MAX_MESSAGE = 1_000
"""Characters of a message that are kept: it may quote the document."""


@dataclass(slots=True)
class BadDocuments:
    """The documents of one source that are left out, each by the message that names it.

    Documents are read ahead of those that are tokenized, so each is kept with its place.
    """

    limit: int = 0
    num_read: int = 0
    """The good documents that have been read: one that can't be read lies before the next."""
    _found: list[tuple[int, str]] = field(default_factory=list)

    @property
    def messages(self) -> tuple[str, ...]:
        """Messages in the order of the documents."""
        return tuple(message for _, message in sorted(self._found, key=itemgetter(0)))

    def add(self, error: DataError, *, number: int | None = None) -> None:
        """Set a document aside: the good one of a `number`, or one that can't be read.

        Raises DataError beyond the limit.
        """
        count = len(self._found) + 1
        if count > self.limit:
            before = f", after {self.limit:_} that `skip_bad` leaves out" if self.limit else ""
            help = f"{error.help}; or write `skip_bad = {count}` in `data`, to leave it out"
            help += f"  (planc explain {error.code})" if error.code else ""
            raise DataError(f"{error.message}{before}", help=help) from error
        place = 2 * self.num_read if number is None else 2 * number + 1
        self._found.append((place, error.message[:MAX_MESSAGE]))

    def usable(self, make: Callable[..., Made], *arguments: object, **named: object) -> Iterator[Made]:
        """Yield the result of `make`; nothing if it raises a DataError, which sets the document aside."""
        try:
            made = make(*arguments, **named)
        except DataError as error:
            self.add(error)
            return
        yield made


class Faults(BadDocuments):
    """Every document that can't be used, by its error: for a reading that reports them all."""

    def __init__(self) -> None:
        super().__init__(sys.maxsize)
        self.errors: list[DataError] = []

    def add(self, error: DataError, *, number: int | None = None) -> None:
        self.errors.append(error)
        super().add(error, number=number)
