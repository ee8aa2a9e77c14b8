"""A fault of a graph."""

from __future__ import annotations

from planc.record import record


@record
class Violation:
    op: str
    text: str

    def __str__(self) -> str:
        return f"{self.op}: {self.text}"
