"""A difference as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planc.diagnostics import Diagnostic


class Group(StrEnum):
    """What a change has consequences for, in the order in which a reviewer asks."""

    LAYOUT = "layout"
    CHECKPOINT = "checkpoint"
    BATCH = "batch"
    NUMERICS = "numerics"
    RUN = "run"


class Action(StrEnum):
    """What happened to a thing; the value is its mark."""

    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"
    REPLACE = "-/+"
    """The old state does not carry over as it is."""
    KEEP = ""
    """Unchanged, and said because readers look for it."""


@dataclass(frozen=True, slots=True)
class BrokenExpectation:
    """An `expect` of the new plan that a change breaks."""

    code: str
    severity: str
    place: str


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a difference. `old` and `new` are None where the thing is absent.

    `note` is a consequence or a reason; `place` says where the new plan (for a removal, the old one) has it.
    """

    group: Group
    action: Action
    name: str
    old: str | None = None
    new: str | None = None
    note: str = ""
    place: str = ""
    breaks: tuple[BrokenExpectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """One side, as the heading names it."""

    name: str
    plan_hash: str
    world_size: int
    num_errors: int


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Everything that differs between two plans.

    `num_unchanged` counts the facts that were compared and found equal. `diagnostics` are the new plan's.
    """

    old: Version
    new: Version
    changes: tuple[Change, ...]
    num_unchanged: int
    diagnostics: tuple[Diagnostic, ...]

    @property
    def same_meaning(self) -> bool:
        """Whether only comments, order, layout or parameters differ."""
        return self.old.plan_hash == self.new.plan_hash

    @property
    def num_changed(self) -> int:
        return sum(change.action is not Action.KEEP for change in self.changes)
