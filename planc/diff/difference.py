"""A difference as data."""

from __future__ import annotations

from enum import StrEnum

from planc.diagnostics import Diagnostic, has_errors
from planc.record import record


class Group(StrEnum):
    """The groups of consequences, in the order of a reviewer's questions."""

    LAYOUT = "layout"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    TIME = "time"
    CHECKPOINT = "checkpoint"
    BATCH = "batch"
    NUMERICS = "numerics"
    RUN = "run"
    EXPECT = "expect"
    """The expectations themselves. Broken ones are findings."""

    @property
    def heading(self) -> str:
        """The heading of a group."""
        return {
            Group.MEMORY: "memory per rank",
            Group.COMMUNICATION: "communication per step, per rank",
            Group.TIME: "time per step",
        }.get(self, self.value)


class Action(StrEnum):
    """The kind of a change; the value is its mark."""

    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"
    REPLACE = "-/+"
    """The old state does not carry over as it is."""
    KEEP = ""
    """Unchanged, and shown because readers look for it."""

    @classmethod
    def of(cls, old: object, new: object) -> Action:
        """The kind of a change from one value to another, of which one may be None: absent."""
        return cls.ADD if old is None else cls.REMOVE if new is None else cls.CHANGE


@record
class Finding:
    """A finding on the new plan that a change causes; `breaks` if it is a broken expectation."""

    code: str
    severity: str
    place: str
    breaks: bool


@record
class Change:
    """One line of a difference. `old` and `new` are None if the value is absent.

    `note` is a consequence or a reason; `place` is its place in the new plan (for a removal, in the old one).
    """

    group: Group
    action: Action
    name: str
    old: str | None = None
    new: str | None = None
    note: str = ""
    place: str = ""
    findings: tuple[Finding, ...] = ()


@record
class Version:
    """One side as the heading shows it."""

    name: str
    plan_hash: str
    world_size: int
    num_errors: int
    note: str = ""
    """A remark on the side's origin."""


class State(StrEnum):
    """The action of a run on an earlier plan's checkpoint in its directory."""

    RESUMES = "continues"
    NOTHING_TO_TRAIN = "nothing to train"
    REFUSED = "refused"


@record
class Verdict:
    """`reason` explains it in one line; `allow` are the names with which `--allow-change` lifts a refusal.

    `notes` are the changes that a run reports when it resumes.
    """

    state: State
    reason: str = ""
    help: str = ""
    allow: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@record
class PlanDiff:
    """All differences between two plans.

    `num_unchanged` counts the facts that were compared and found equal. `diagnostics` are the new plan's, and
    the notes on the change itself.
    """

    old: Version
    new: Version
    changes: tuple[Change, ...]
    num_unchanged: int
    diagnostics: tuple[Diagnostic, ...]
    resume: Verdict | None = None
    """The action of a run of the new plan on the old side, a checkpoint, or else on one that it saved."""

    new_warnings: tuple[Diagnostic, ...] = ()
    """The warnings in `diagnostics` that the old plan does not have."""

    @property
    def same_meaning(self) -> bool:
        """Whether only comments, order, layout or parameters differ.

        The smaller sizes of an elastic plan are not in the graph, nor in its hash.
        """
        is_one = self.old.plan_hash == self.new.plan_hash
        return is_one and all(change.action is Action.KEEP for change in self.changes)

    def differs_in(self, group: Group) -> bool:
        """Whether anything in a group differs, or does not carry over."""
        if group is Group.CHECKPOINT and self.refuses_checkpoints:
            return True
        return any(change.group is group and change.action is not Action.KEEP for change in self.changes)

    @property
    def refuses_checkpoints(self) -> bool:
        """Whether a run would not resume because of a change; a plan with errors does not run at all."""
        is_refused = self.resume is not None and self.resume.state is State.REFUSED
        return is_refused and not has_errors(self.diagnostics)

    @property
    def num_changed(self) -> int:
        return sum(change.action is not Action.KEEP for change in self.changes)
