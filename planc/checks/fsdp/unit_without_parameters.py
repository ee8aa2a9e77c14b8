"""FSDP units without parameters."""

from __future__ import annotations

from planc.checks.fsdp.fsdp_groups import group_by_module, owner
from planc.checks.fsdp.unit_on_container import CODE as UNIT_ON_CONTAINER
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.layouts.families import families, quoted
from planc.source import Span

CODE = Code("P505", "unit-without-parameters", "this FSDP unit has no parameters", Severity.WARNING)


@reports(CODE, block="fsdp", unless=(UNIT_ON_CONTAINER,))
def check(subject: Subject) -> Findings:
    """One warning for each rule whose units have no parameters outside of other units."""
    groups = group_by_module(subject.bound.units)
    owners = (module.fqn for module in subject.inventory.modules if module.parameters)
    filled = {id(owner(groups, fqn)) for fqn in owners}
    empty: dict[Span, list[str]] = {}
    for group in subject.bound.units:
        if id(group) not in filled:
            empty.setdefault(group.span, []).extend(group.fqns)
    for span, fqns in empty.items():
        yield CODE.at(
            span,
            f"{quoted(families(subject.inventory, fqns)[:3])} has no parameters outside of other units",
            help="remove this rule, or the units inside these modules",
        )
