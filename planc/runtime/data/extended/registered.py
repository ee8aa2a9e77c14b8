"""The code of a plan's data: loaded, with its arguments, and with its errors as those of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from planc.extend.reference import Extension
from planc.runtime.data.errors import DataError
from planc.runtime.errors import STOPS, RunError
from planc.runtime.extensions import arguments_of, fault_of, load_extension


@dataclass(frozen=True, slots=True)
class Code:
    """The function that an extension registers; the extension has its arguments."""

    extension: Extension
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.extension.entry


def loaded(extension: Extension, *, base: Path, is_allowed: bool = True) -> Code:
    """The code of an extension. Raises DataError if it may not run, has changed, or fails.

    `want` asks whether it may run, before anything reads the data.
    """
    try:
        function = load_extension(extension, base=base, is_allowed=is_allowed)
    except RunError as error:
        raise DataError(error.message, help=error.help or "correct the file") from error
    return Code(extension, partial(function, **arguments_of(extension)))


def called(code: Code, function: Callable[..., Any], *arguments: object, what: str) -> Any:
    """Call a function of an extension. Whatever it raises is a DataError with its line."""
    try:
        return function(*arguments)
    except STOPS:
        raise
    except BaseException as error:
        reason = fault_of(error, file=code.extension.file)
        raise DataError(f"{what} fails: {reason}", help="correct the code, or what it reads") from error
