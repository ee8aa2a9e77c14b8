"""A snapshot of CUDA memory in a run on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.mesh import Backend

CODE = Code("P741", "snapshot-on-cpu", "memory snapshots require CUDA")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One error if the plan is for CPUs: `backend = gloo`."""
    plan = subject.plan
    if plan.profile is None or not plan.profile.memory or plan.mesh.backend is not Backend.GLOO:
        return
    gloo = Label(plan.span("mesh.backend"), "gloo runs on CPUs")
    help = "leave out `memory`, or write `backend = auto` in `mesh`"
    yield CODE.at(plan.span("profile.memory"), "a snapshot records CUDA memory", secondary=(gloo,), help=help)


RULE = Rule((CODE,), check)
