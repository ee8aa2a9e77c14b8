"""CPU offloading in a run on CPUs."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.plan.mesh import Backend

CODE = Code("P522", "offloaded-nowhere", "`cpu_offload` has no effect on CPUs", Severity.WARNING)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning at `fsdp.cpu_offload` if the plan is for CPUs: `backend = gloo`."""
    plan = subject.plan
    if plan.fsdp is None or not plan.fsdp.cpu_offload or plan.mesh.backend is not Backend.GLOO:
        return
    yield CODE.at(
        plan.span("fsdp.cpu_offload"),
        "parameters are in host memory already",
        secondary=(Label(plan.span("mesh.backend"), "gloo runs on CPUs"),),
        help="leave out `cpu_offload`, or write `backend = auto`",
    )
