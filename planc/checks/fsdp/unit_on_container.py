"""FSDP units on module lists, which never run."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.schema import Kind
from planc.layouts.families import families, quoted

CODE = Code("P501", "unit-on-container", "an FSDP unit needs a module with a forward")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule that makes a unit of a module list."""
    lists = {module.fqn for module in subject.inventory.modules if module.kind is Kind.MODULE_LIST}
    for group in subject.bound.units:
        wrong = [fqn for fqn in group.fqns if fqn in lists]
        if wrong:
            names = families(subject.inventory, wrong)
            yield CODE.at(
                group.span,
                f"{quoted(names)} is a module list",
                notes=("a unit gathers its parameters in its forward, and a list has none",),
                help=f'name its members: `"{names[0]}.*"`',
            )
