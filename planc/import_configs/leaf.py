"""What a config holds: values with their keys and lines, whatever the file's format."""

from __future__ import annotations

from math import isfinite
from typing import TypeAlias

from planc.record import record
from planc.syntax.write import number

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"

MAX_BYTES = 128 * 1024
MAX_DEPTH = 32
MAX_LEAVES = 10_000
"""The number of all values, at most; values that aliases repeat count again."""


class SourceError(ValueError):
    """A file that can't be read as a config; `line` is None for all of it."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@record
class Leaf:
    """A key with its value: a scalar, or a list of scalars. An empty table is an empty list."""

    path: tuple[str, ...]
    """Keys from the top; of a list of tables, the index."""
    value: Value
    line: int

    @property
    def key(self) -> str:
        """The key as notes name it."""
        return ".".join(self.path)


def written(value: Value) -> str:
    """A value for a message, as a plan would write it, cut where it is long."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case tuple():
            text = f"[{', '.join(map(written, value))}]"
        case float() if isfinite(value):
            text = number(value)
        case _:
            text = str(value)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_leaf(path: tuple[str, ...], num_leaves: int, line: int) -> None:
    """SourceError for a config beyond the limits."""
    if len(path) > MAX_DEPTH:
        raise SourceError(f"keys are nested deeper than {MAX_DEPTH}", line)
    if num_leaves > MAX_LEAVES:
        raise SourceError(f"more than {MAX_LEAVES:_} values", line)
