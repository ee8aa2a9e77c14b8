"""FSDP units that contain each other's modules."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.units import cycles

CODE = Code("P309", "units-in-circle", "FSDP units contain each other's modules")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each cycle of units, at the unit whose rule comes last."""
    for circle in cycles(subject.bound.units):
        held = {group.span: fqn for group, fqn in circle}
        last = max(held)
        yield CODE.at(
            last,
            f"contains `{held[last]}` of another unit",
            secondary=tuple(Label(span, f"contains `{fqn}`") for span, fqn in held.items() if span != last),
            notes=("a unit is sharded after the units inside it, so none of these could be first",),
            help="make units of modules at one depth, or remove modules of other units from the list",
        )
