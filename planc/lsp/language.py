"""What may be written where: the language's own definitions, asked by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any

from planc.plan.blocks import BLOCKS, Shape
from planc.plan.scalars import Bool, Choice, Quantity, ValueType
from planc.plan.types import PLACEMENT_CASES, List, Optional, OrAuto, Placement, Rest, Variant, calls_of, keys

Opened = tuple[str, str]
"""A block that is open at a place: its kind and its label, which most have none of."""


def shape_of(blocks: Sequence[Opened]) -> Shape | None:
    """What the innermost of nested blocks may hold; None for one that the language does not have."""
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
        case _:
            return ()


def takes_params(wanted: ValueType) -> bool:
    """Whether a parameter may give a value: not where a word or a call is one of a closed set."""
    match wanted:
        case Optional(inner) | OrAuto(inner):
            return takes_params(inner)
        case _:
            return not isinstance(wanted, Choice | Variant | Placement)
