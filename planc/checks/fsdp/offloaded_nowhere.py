"""Offloading to the memory that everything lies in."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label, Severity
from planc.plan.spec import Backend

CODE = Code("P522", "offloaded-nowhere", "there is no device to offload from", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning at `fsdp.cpu_offload` when the plan says that it runs on processors: `backend = gloo`."""
    plan = subject.plan
    if plan.fsdp is None or not plan.fsdp.cpu_offload or plan.mesh.backend is not Backend.GLOO:
        return
    yield CODE.at(
        plan.span("fsdp.cpu_offload"),
        "parameters lie in the host's memory anyway",
        secondary=(Label(plan.span("mesh.backend"), "gloo runs on processors"),),
        help="leave it out, or write `backend = auto`",
    )


RULE = Rule((CODE,), check)
