"""A difference as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planc.diagnostics import Diagnostic


class Group(StrEnum):
    """What a change has consequences for, in the order in which a reviewer asks."""

    LAYOUT = "layout"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    CHECKPOINT = "checkpoint"
    BATCH = "batch"
    NUMERICS = "numerics"
    RUN = "run"

    @property
    def heading(self) -> str:
        """As a heading says it."""
        return {Group.MEMORY: "memory per rank", Group.COMMUNICATION: "communication per step, per rank"}.get(
            self, self.value
        )


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
class Finding:
    """A finding on the new plan that a change brings up; `breaks` where it is an expectation's."""

    code: str
    severity: str
    place: str
    breaks: bool


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
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """One side, as the heading names it."""

    name: str
    plan_hash: str
    world_size: int
    num_errors: int
    note: str = ""
    """What a reader must know of where it came from."""


class State(StrEnum):
    """What a run does with a checkpoint that an earlier plan left in its folder."""

    RESUMES = "goes on"
    NOTHING_TO_TRAIN = "nothing to train"
    STARTS_ANEW = "starts anew"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` says why, in one line; `allow` are the names with which `--allow-change` lifts a refusal.

    `notes` are the changes that a run tells of as it goes on.
    """

    state: State
    reason: str = ""
    help: str = ""
    allow: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Everything that differs between two plans.

    `num_unchanged` counts the facts that were compared and found equal. `diagnostics` are the new plan's, and
    the notes on the change itself.
    """

    old: Version
    new: Version
    changes: tuple[Change, ...]
    num_unchanged: int
    diagnostics: tuple[Diagnostic, ...]
    resume: Verdict | None = None
    """Where the old side is a checkpoint: what a run of the new plan does with it."""

    @property
    def same_meaning(self) -> bool:
        """Whether only comments, order, layout or parameters differ.

        What an elastic plan may shrink to is in no graph, and so in no hash.
        """
        is_one = self.old.plan_hash == self.new.plan_hash
        return is_one and all(change.action is Action.KEEP for change in self.changes)

    def differs_in(self, group: Group) -> bool:
        """Whether anything of a group differs, or does not carry over."""
        return any(change.group is group and change.action is not Action.KEEP for change in self.changes)

    @property
    def num_changed(self) -> int:
        return sum(change.action is not Action.KEEP for change in self.changes)
