"""FSDP units that hold one another's modules."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.units import cycles

CODE = Code("P309", "units-in-circle", "FSDP units hold one another's modules")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each circle of units, at the unit whose rule comes last."""
    for circle in cycles(subject.bound.units):
        held = {group.span: fqn for group, fqn in circle}
        last = max(held)
        yield CODE.at(
            last,
            f"holds `{held[last]}` of another unit",
            secondary=tuple(Label(span, f"holds `{fqn}`") for span, fqn in held.items() if span != last),
            notes=("a unit is sharded after all that it holds, so none of these could come first",),
            help="make units of modules at one depth, or leave out of a list what another unit holds",
        )


RULE = Rule((CODE,), check)
