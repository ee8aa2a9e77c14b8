"""Parameters that should stay whole until a step's last backward, and that units free after forward."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P509", "freed-after-forward", "units free parameters that should stay whole")


@reports(CODE, block="fsdp")
def check(subject: Subject) -> Findings:
    """One finding at the first unit that is resharded after forward, if backward should not reshard it."""
    fsdp = subject.plan.fsdp
    if fsdp is None or fsdp.reshard_after_backward:
        return
    freed = next((unit for unit in subject.bound.units if unit.unit.reshard_after_forward), None)
    if freed is not None:
        yield CODE.at(
            freed.span,
            "resharded after forward",
            secondary=(Label(subject.plan.span("fsdp.reshard_after_backward"), "but not after backward"),),
            notes=("the unit would be gathered again in every backward, and freed in the next forward",),
            help="write `unit(reshard_after_forward = false)`",
        )
