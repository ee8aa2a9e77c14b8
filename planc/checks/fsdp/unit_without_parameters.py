"""FSDP units that hold nothing."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.fsdp.fsdp_groups import group_by_module, owner
from planc.checks.fsdp.unit_on_container import CODE as UNIT_ON_CONTAINER
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.layouts.families import families, quoted
from planc.source import Span

CODE = Code("P505", "unit-without-parameters", "this FSDP unit has no parameters", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning for each rule that makes units of modules whose parameters are all taken, or none."""
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
            f"{quoted(families(subject.inventory, fqns)[:3])} holds no parameter that no other unit holds",
            help="remove the rule, or leave out the units inside",
        )


RULE = Rule((CODE,), check, block="fsdp", unless=(UNIT_ON_CONTAINER,))
