"""A run's output when nobody can take it any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TextIO


def outlive_reader(stream: TextIO | None) -> None:
    """From its first failed write on, a stream takes what it is given and shows none of it.

    A run saves and ends with its own code though its terminal is gone, though `tee` was told to end with it,
    and though the disk of its log is full.
    """
    if stream is None:
        return
    is_open = True

    def tolerant(function: Callable[..., Any], failed: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal is_open
            if is_open:
                try:
                    return function(*arguments)
                except OSError:
                    is_open = False
            return failed(*arguments)

        return call

    stream.write = tolerant(stream.write, len)  # type: ignore[method-assign]
    stream.flush = tolerant(stream.flush, lambda: None)  # type: ignore[method-assign]
