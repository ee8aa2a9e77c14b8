"""Experts on different ranks that FSDP does not gather by themselves."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import family

CODE = Code("P622", "experts-apart", "experts on different ranks need FSDP units of their own")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each unit of experts with other modules."""
    bound = subject.bound
    for group in bound.units:
        held = [fqn for fqn in group.fqns if fqn in bound.experts]
        if held and len(group.fqns) > 1:
            yield CODE.at(
                group.span,
                f"`{family(subject.inventory, held[0])}` would be gathered with other modules",
                secondary=(Label(bound.experts[held[0]], "dispatched to here"),),
                notes=("ranks hold different experts, and shards of them over fewer ranks",),
                help=f'write a rule of its own: `"{family(subject.inventory, held[0])}" -> unit`',
            )
