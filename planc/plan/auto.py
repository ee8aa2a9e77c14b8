"""The rules that `auto` means: the model's own plan, or what planc found for a model."""

from __future__ import annotations

from enum import StrEnum

from planc.inventory.schema import Inventory
from planc.plan.keys import key, keyed
from planc.plan.scalars import Bool, Choice
from planc.record import record
from planc.source import NOWHERE, Span
from planc.styles import Boundary


class AutoRules(StrEnum):
    MODEL = "model"
    SOLVE = "solve"


@keyed
class Auto:
    """Applies rules that the plan does not write: the model's own plan, or what planc finds for it."""

    rules: AutoRules = key(
        Choice(AutoRules),
        unsaid=AutoRules.MODEL,
        positional=True,
        doc="model for the plan that comes with the model, found by planc if it has none; solve to find one",
    )
    sequence_parallel: bool = key(
        Bool(), unsaid=False, doc="shard the sequence between layers, with rules that planc finds"
    )
    span: Span = NOWHERE


@record
class AutoRule:
    """A rule that no plan has written."""

    pattern: str
    style: str
    boundary: Boundary = Boundary()


@record
class Automatic:
    """The meaning of `auto`. `reason` says why there are no rules."""

    rules: tuple[AutoRule, ...] = ()
    reason: str = ""


def own_rules(inventory: Inventory) -> Automatic:
    """The tensor-parallel plan that comes with the model."""
    return Automatic(tuple(AutoRule(pattern, style) for pattern, style in inventory.tp_plan))
