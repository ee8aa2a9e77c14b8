"""The record of a kind of extensions, and the mark that its decorator leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from planc.record import record

Any_ = TypeVar("Any_", bound=Callable[..., Any])
MARK = "__planc_extension__"
"""The attribute in which a decorator notes (kind, name) on what it decorates, which it returns unchanged."""


@record
class Kind:
    """A kind of extension: the decorator `planc.extend.WORD`, and what planc passes to what it decorates.

    `passes` are the first parameters, by position, of any names. `offers` are keyword-only parameters that
    planc passes where they are there. All others are keyword-only, and get their values in the plan.
    """

    word: str
    setting: str
    """The setting of a plan that can name one."""
    passes: tuple[str, ...]
    offers: tuple[str, ...] = ()
    varies: tuple[str, ...] = ()
    """Keyword-only parameters of which the plan gives a first value and planc, later, others: no defaults."""
    needs: tuple[str, ...] = ()
    """Keyword-only parameters that it must have."""
    options: tuple[str, ...] = ()
    """The arguments that the decorator takes after the name: tuples of strings."""
    reserved: tuple[str, ...] = ()
    """Offers whose names the decorator's options can't hold: planc keeps a value under each."""
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """More arguments that it takes after the name, with their values: strings."""
    methods: tuple[str, ...] = ()
    """The methods that planc calls, of a kind that can be a class: its `__init__` takes the plan's values."""


def mark(kind: Kind, target: Any_, name: str) -> Any_:
    """`target`, with the note that a run looks for."""
    setattr(target, MARK, (kind.word, name))
    return target
