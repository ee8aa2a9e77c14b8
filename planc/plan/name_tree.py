"""Patterns against many names at once, along a tree of the names' parts."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import pairwise

from planc.plan.segments import Segment
from planc.record import record


@record
class _Tree:
    """Names by their parts: a thousand patterns over a thousand names do not make a million comparisons."""

    children: dict[str, _Tree] = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    """The indices of the name that ends here among the names."""


@functools.lru_cache(maxsize=8)
def _tree(names: tuple[str, ...]) -> _Tree:
    """Every pattern of a plan is held against the same few lists of names."""
    root = _Tree()
    for position, name in enumerate(names):
        node = root
        for part in name.split("."):
            if part not in node.children:
                node.children[part] = _Tree()
            node = node.children[part]
        node.positions.append(position)
    return root


def fitting(segments: Sequence[Segment], names: tuple[str, ...]) -> Iterator[int]:
    """The positions of the names that match, in no order.

    `ways` are how many segments may have been taken on the way to a node: several, where `**` allows.
    """
    # One `**` says as much as several in a row, which would make many ways.
    segments = [
        *segments[:1],
        *(after for one, after in pairwise(segments) if not (one.depth and after.depth)),
    ]
    last = len(segments)
    known: dict[tuple[tuple[int, ...], str], tuple[int, ...]] = {}
    todo: list[tuple[_Tree, tuple[int, ...]]] = [(_tree(names), _with_depths(segments, {0}))]
    while todo:
        node, ways = todo.pop()
        if last in ways:
            yield from node.positions
        if len(ways) == 1 and ways[0] < last and (exact := segments[ways[0]].exact) is not None:
            after = _with_depths(segments, {ways[0] + 1})
            shorter, longer = sorted((exact, node.children), key=len)
            todo.extend((node.children[part], after) for part in shorter if part in longer)
            continue
        for part, child in node.children.items():
            if (ways, part) not in known:
                known[ways, part] = _with_depths(segments, _after(segments, ways, part))
            if known[ways, part]:
                todo.append((child, known[ways, part]))


def _after(segments: Sequence[Segment], ways: tuple[int, ...], part: str) -> set[int]:
    """Return the numbers of segments that may have been taken once a part is taken too."""
    counts = set()
    for num_taken in ways:
        if num_taken == len(segments):
            continue
        if segments[num_taken].depth:
            counts.add(num_taken)
        elif segments[num_taken].matches(part):
            counts.add(num_taken + 1)
    return counts


def _with_depths(segments: Sequence[Segment], ways: set[int]) -> tuple[int, ...]:
    """The ways with those that a `**` adds, which may take no part at all."""
    ways |= {taken + 1 for taken in ways if taken < len(segments) and segments[taken].depth}
    return tuple(ways)
