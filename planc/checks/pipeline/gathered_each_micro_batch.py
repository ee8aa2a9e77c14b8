"""FSDP units in a pipeline that are gathered twice for each micro-batch."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.plan.facts import gradient_accumulation
from planc.vocab import MeshDim

CODE = Code(
    "P329",
    "gathered-each-micro-batch",
    "units are gathered in forward and in backward of every micro-batch",
    Severity.NOTE,
)


@reports(CODE, over=MeshDim.PP)
def check(subject: Subject) -> Findings:
    """One note at the first unit that is resharded after forward."""
    plan = subject.plan
    if plan.fsdp is None or plan.pipeline is None or all(plan.mesh.size(dim) == 1 for dim in plan.fsdp.on):
        return
    resharded = [unit for unit in subject.bound.units if unit.unit.reshard_after_forward]
    if resharded:
        times = gradient_accumulation(plan)
        yield CODE.at(
            resharded[0].span,
            f"this unit is gathered {2 * times} times in a step",
            help=f"`unit(reshard_after_forward = false)` gathers {times} times, "
            "and keeps parameters gathered between forward and backward",
        )
