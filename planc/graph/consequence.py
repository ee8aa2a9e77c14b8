"""The consequence of a change of an op's field, which each field states: for `diff`, resumes and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from planc.record import record

if TYPE_CHECKING:
    from planc.graph.op import Op


class Consequence(StrEnum):
    """The consequence of a field for a run, and for a checkpoint of a plan with another value."""

    NUMERICS = "numerics"
    """The training itself: a run resumes only by leave."""
    LAYOUT = "layout"
    """The places of tensors, and the parts in which they are computed: a run resumes."""
    SAMPLES = "samples"
    """The samples and their order: a checkpoint is of one order, and a run doesn't resume under another."""
    IDENTITY = "identity"
    """The model and settings that a checkpoint is of: a run doesn't resume under another."""
    START = "start"
    """The state that a run begins with: a checkpoint replaces it."""
    OUTPUT = "output"
    """Reports and saves of a run, and its launch."""
    DERIVED = "derived"
    """Follows from other fields, and never changes alone."""


@record
class Meaning:
    """The consequence of a field, and the line that `diff` prints for it.

    `key` is the setting of a plan that determines it. Fields with one `label` have one line.
    """

    consequence: Consequence
    key: str = ""
    label: str = ""
    is_in_sums: bool = False
    """Whether another value may sum the same numbers in another order."""


DERIVED = Meaning(Consequence.DERIVED)


def derived_sums(key: str, label: str) -> Meaning:
    """A field that follows from others, and from which the order of sums follows."""
    return Meaning(Consequence.DERIVED, key, label, is_in_sums=True)


def numerics(key: str, label: str = "", *, is_in_sums: bool = False) -> Meaning:
    """A field that another training follows from."""
    return Meaning(Consequence.NUMERICS, key, label or key, is_in_sums)


def layout(key: str, label: str = "", *, is_in_sums: bool = False) -> Meaning:
    """A field that decides where and in which parts the same training is computed."""
    return Meaning(Consequence.LAYOUT, key, label or key, is_in_sums)


def samples(key: str, label: str = "") -> Meaning:
    """A field that decides which samples a run sees, and in which order."""
    return Meaning(Consequence.SAMPLES, key, label or key)


def identity(key: str, label: str = "") -> Meaning:
    """A field that a checkpoint keeps for good."""
    return Meaning(Consequence.IDENTITY, key, label or key)


def start(key: str, label: str = "") -> Meaning:
    """A field that matters until a checkpoint is loaded."""
    return Meaning(Consequence.START, key, label or key)


def output(key: str, label: str = "") -> Meaning:
    """A field that no training depends on."""
    return Meaning(Consequence.OUTPUT, key, label or key)


UNSTATED = frozenset({"op", "span", "body"})
"""An op's name, its place in the plan, and the ops in it, which have fields of their own."""


@cache
def meanings(kind: type[Op]) -> Mapping[str, Meaning]:
    """The meaning of each field of an op, by name. A field without one is a bug of planc."""
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    by_field: dict[str, Meaning] = {}
    for one in fields(kind):
        if one.name not in UNSTATED:
            stated = [part for part in get_args(hints[one.name]) if isinstance(part, Meaning)]
            assert stated, f"{kind.__name__}.{one.name} does not state what a change of it means"
            by_field[one.name] = stated[0]
    return by_field
