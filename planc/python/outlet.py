"""The outlet for the progress of a run that Python started: the program's own stdout, guarded, or none."""

from __future__ import annotations

import io
import os
from typing import TextIO

from planc.outgoing import guard


class _Outlet(io.TextIOBase):
    """Another stream's text, without closing or changing that stream."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return (self._stream and self._stream.encoding) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno() if self._stream is not None else super().fileno()

    def write(self, text: str) -> int:
        return self._stream.write(text) if self._stream is not None else len(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()


def outlet(stream: TextIO | None) -> TextIO:
    """A stream that writes harmless text to `stream`, with `***` for every secret of the environment.

    The caller's own stream stays as it is, for its own text. None discards what is written.
    """
    guarded = _Outlet(stream)
    guard(guarded, environment=os.environ)  # type: ignore[arg-type]
    return guarded  # type: ignore[return-value]
