"""A snapshot of CUDA memory, in a run on processors."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.spec import Backend

CODE = Code("P741", "snapshot-on-cpu", "processors have no memory that PyTorch could take a snapshot of")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One error where the plan itself says that it runs on processors."""
    plan = subject.plan
    if plan.profile is None or not plan.profile.memory or plan.mesh.backend is not Backend.GLOO:
        return
    gloo = Label(plan.span("mesh.backend"), "gloo runs on processors")
    help = "leave it out, or set mesh.backend = auto"
    yield CODE.at(plan.span("profile.memory"), "it records CUDA memory", secondary=(gloo,), help=help)


RULE = Rule((CODE,), check)
