"""The names that a pattern may match, and how far a half-written one has come."""

from __future__ import annotations

from collections.abc import Sequence

from planc.inventory.schema import Inventory
from planc.plan.bind import BUFFERS
from planc.plan.pattern import parse_pattern
from planc.source import NOWHERE
from planc.syntax import ast


def names_for(kind: str, inventory: Inventory) -> tuple[str, ...]:
    """What the patterns of a kind of block name: modules, parameters, or tensors of the batch."""
    if kind == "context_parallel":
        return BUFFERS
    if kind == "optimizer":
        parameters = (name for fqn, module, _ in inventory.parameters() for name in (module.fqn, fqn))
        return tuple(dict.fromkeys(name for name in parameters if name))
    return inventory.names()


def next_parts(written: str, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The unfinished end of a half-written pattern, and the parts that may replace it.

    The parts are the children of what the pattern matches so far. Numbers come as `*` and as their range.
    """
    start = max(written.rfind(character) for character in ".{,") + 1
    depth = written.count("{") - written.count("}")
    whole = written.rfind("{") if depth > 0 else start
    parent = written[: written.rfind(".", 0, whole) + 1].rstrip(".")
    return written[start:], tuple(_with_range(_children(parent, names)))


def _children(parent: str, names: Sequence[str]) -> list[str]:
    if not parent:
        return list(dict.fromkeys(name.partition(".")[0] for name in names))
    pattern = parse_pattern(ast.Text(parent, NOWHERE))
    if isinstance(pattern, tuple):
        return []
    found: dict[str, None] = {}
    for name in names:
        head, dot, last = name.rpartition(".")
        if dot and pattern.matches(head):
            found[last] = None
    return list(found)


def _with_range(children: Sequence[str]) -> list[str]:
    """Numbers as `*` and `{0..31}`: no one picks a layer from a list."""
    numbers = sorted(int(child) for child in children if child.isdecimal())
    others = [child for child in children if not child.isdecimal()]
    if not numbers:
        return others
    return ["*", f"{{{numbers[0]}..{numbers[-1]}}}", *others]
