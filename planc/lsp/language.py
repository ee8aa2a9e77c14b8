"""The language's own definitions by place, and the names that patterns match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any

from planc.inventory.schema import Inventory
from planc.plan.bind import BUFFERS
from planc.plan.blocks import BLOCKS, Shape
from planc.plan.checkpoint import OrPath, StepsOrTime
from planc.plan.extensions import OrExtension
from planc.plan.keys import keys
from planc.plan.pattern import parse_pattern
from planc.plan.quantities import SECONDS, STEPS
from planc.plan.scalars import Bool, Choice, Quantity, ValueType
from planc.plan.types import PLACEMENT_CASES, List, Optional, OrAuto, Placement, Rest, Variant, calls_of
from planc.source import NOWHERE
from planc.syntax import ast

Opened = tuple[str, str]
"""A block that is open at a place: its kind and its label, which most have none of."""


def shape_of(blocks: Sequence[Opened]) -> Shape | None:
    """Return the shape of the innermost of nested blocks; None for one that the language does not have."""
    if not blocks or blocks[0][0] not in BLOCKS:
        return None
    shape = BLOCKS[blocks[0][0]]
    for name, label in blocks[1:]:
        inner = shape.labelled(name, label) if name in shape.nested else None
        if inner is None:
            return None
        shape = inner
    return shape


def field_of(record: type[Any], name: str) -> Field[Any] | None:
    """A key of a block, or an argument of a call."""
    return next((key for key in keys(record) if key.name == name), None)


def words_of(wanted: ValueType) -> tuple[str, ...]:
    """The bare words that a type takes, those of calls without parentheses included."""
    match wanted:
        case Choice(choices):
            return tuple(map(str, choices))
        case Bool():
            return ("true", "false")
        case Optional(inner):
            return (*words_of(inner), "none")
        case OrAuto(inner):
            return (*words_of(inner), "auto")
        case OrPath(inner):
            return words_of(inner)
        case List(of) | Rest(of):
            return words_of(of)
        case _:
            return tuple(calls_in(wanted))


def calls_in(wanted: ValueType) -> Mapping[str, type[Any]]:
    """The calls that a type takes, or the items of its lists."""
    match wanted:
        case List(of) | Rest(of) | Optional(of) | OrAuto(of):
            return calls_in(of)
        case Placement():
            return PLACEMENT_CASES
        case Variant(cases):
            return cases
        case _:
            return calls_of(wanted)


def units_of(wanted: ValueType) -> tuple[str, ...]:
    """The units of a type's numbers."""
    match wanted:
        case Optional(inner) | OrAuto(inner):
            return units_of(inner)
        case Quantity(units):
            return tuple(units)
        case StepsOrTime():
            return (*STEPS, *SECONDS)
        case _:
            return ()


def takes_params(wanted: ValueType) -> bool:
    """Whether a parameter may give a value: not where a word or a call is one of a closed set."""
    match wanted:
        case Optional(inner=inner) | OrAuto(inner=inner) | OrExtension(inner=inner):
            return takes_params(inner)
        case _:
            return not isinstance(wanted, Choice | Variant | Placement)


def names_for(kind: str, inventory: Inventory) -> tuple[str, ...]:
    """Return the names that patterns of a block match: modules, parameters, or tensors of the batch."""
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
