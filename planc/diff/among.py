"""Differences between several plans, as a value of each by label: for tables of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.diff.difference import Action
from planc.diff.lines import compare_line, lines
from planc.diff.side import Side
from planc.graph.consequence import Consequence


def among(sides: Sequence[Side]) -> Mapping[str, tuple[str, ...]]:
    """Return the values in which plans differ, one for each plan, by label; `-` where a plan has none.

    What follows from other values, such as memory, is left out.
    """
    if not sides:
        return {}
    first, *others = sides
    stated = [line for line in lines() if line.consequence is not Consequence.DERIVED]
    values: dict[str, list[str | None]] = {}
    for place, side in enumerate(others, start=1):
        for line in stated:
            for change in compare_line(line, first, side):
                if change.action is Action.KEEP:
                    continue
                # A plan that has the first one's value is not in its own comparison.
                cells = values.setdefault(change.name, [change.old] * len(sides))
                cells[0], cells[place] = change.old, change.new
    return {name: tuple(cell or "-" for cell in cells) for name, cells in values.items()}
