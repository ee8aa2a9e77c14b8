"""A snapshot of CUDA memory in a run on CPUs."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.mesh import Backend

CODE = Code("P741", "snapshot-on-cpu", "memory snapshots require CUDA")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One error if the plan is for CPUs: `backend = gloo`."""
    plan = subject.plan
    if plan.profile is None or not plan.profile.memory or plan.mesh.backend is not Backend.GLOO:
        return
    gloo = Label(plan.span("mesh.backend"), "gloo runs on CPUs")
    help = "leave out `memory`, or write `backend = auto` in `mesh`"
    yield CODE.at(plan.span("profile.memory"), "a snapshot records CUDA memory", secondary=(gloo,), help=help)
