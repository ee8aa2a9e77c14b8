"""What one measurement says, kept as JSON for the page, and printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"


@dataclass(frozen=True, slots=True)
class Result:
    """A row: `cells` are the figures, as the section's table has columns for them. No goal is always met."""

    name: str
    cells: tuple[str, ...]
    goal: str = ""
    is_met: bool = True

    @property
    def verdict(self) -> str:
        return "" if not self.goal else "met" if self.is_met else "MISSED"

    def __str__(self) -> str:
        goal = f"  goal {self.goal}: {self.verdict}" if self.goal else ""
        return f"{self.name:<30}{'  '.join(f'{cell:>10}' for cell in self.cells)}{goal}"


def read_results(path: Path = RESULTS) -> dict[str, list[Result]]:
    """The rows by section; none where nothing was measured yet."""
    if not path.exists():
        return {}
    sections = json.loads(path.read_text(encoding="utf-8"))
    return {
        section: [Result(**{**row, "cells": tuple(row["cells"])}) for row in rows]
        for section, rows in sections.items()
    }


def write_results(section: str, results: Sequence[Result], *, path: Path = RESULTS) -> None:
    """Puts a section's rows in the place of those of an earlier measurement."""
    sections = read_results(path) | {section: list(results)}
    data = {name: [asdict(row) for row in rows] for name, rows in sorted(sections.items())}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def put_result(section: str, result: Result, *, names: Sequence[str], path: Path = RESULTS) -> None:
    """Puts a row in the place of the one of its name. The section keeps rows of `names`, in their order."""
    rows = {one.name: one for one in (*read_results(path).get(section, []), result)}
    write_results(section, [rows[name] for name in names if name in rows], path=path)


def report(results: Sequence[Result]) -> int:
    """The exit code: 1 where a goal is missed, which is printed."""
    missed = [one.name for one in results if not one.is_met]
    print(f"MISSED: {', '.join(missed)}" if missed else "every goal is met")
    return 1 if missed else 0
