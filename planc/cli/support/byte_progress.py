"""The progress of a command that reads bytes: a redrawn line on a terminal, a line every minute elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from planc.tables import format_bytes

_LINE_SECONDS = 60.0


class ByteProgress:
    """Bytes of text read so far, on stderr. `total` is None if it is unknown."""

    def __init__(self, label: str, *, total: int | None, is_quiet: bool = False) -> None:
        self.label, self.total, self.is_quiet = label, total, is_quiet
        self._read = 0
        self._began = self._printed = time.monotonic()
        self._progress: Progress | None = None
        if not is_quiet and sys.stderr.isatty():
            text = TextColumn("{task.description}", markup=False)
            console = Console(stderr=True, highlight=False)
            self._progress = Progress(
                text, BarColumn(12), TimeRemainingColumn(), console=console, transient=True
            )
            self._task = self._progress.add_task(label, total=total or None)

    def __enter__(self) -> ByteProgress:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, size_bytes: int) -> None:
        self.show(self._read + size_bytes)

    def show(self, size_bytes: int, *, note: str = "") -> None:
        """`size_bytes` have been read since the start."""
        self._read = size_bytes
        now = time.monotonic()
        rate = format_bytes(round(size_bytes / max(now - self._began, 1e-9)))
        text = f"{self.label}: {format_bytes(size_bytes)}{f', {note}' if note else ''}, {rate}/s"
        if self._progress is not None:
            self._progress.update(self._task, completed=size_bytes, description=text)
        elif not self.is_quiet and now - self._printed >= _LINE_SECONDS:
            self._printed = now
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line of its own."""
        if self._progress is not None:
            self._progress.console.print(f"{self.label}: {text}", markup=False)
        elif not self.is_quiet:
            print(f"{self.label}: {text}", file=sys.stderr, flush=True)
