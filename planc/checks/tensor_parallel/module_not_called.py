"""Rules on modules that the model never calls."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.schema import Kind
from planc.layouts.families import families, quoted
from planc.source import Span

CODE = Code("P420", "module-not-called", "the model never calls this module")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule on modules whose parameters the model uses without calling them.

    Styles and units take effect when their module is called; without a call, the model would see a shard.
    """
    idle = _never_called(subject)
    named: dict[Span, list[str]] = {}
    for fqn, assignment in subject.bound.styles.items():
        # A module that stays whole needs no call.
        if fqn in idle and assignment.style.name != "replicate":
            named.setdefault(assignment.span, []).append(fqn)
    for group in subject.bound.units:
        for fqn in group.fqns:
            if fqn in idle:
                named.setdefault(group.span, []).append(fqn)
    for span, fqns in named.items():
        names = quoted(families(subject.inventory, fqns)[:3])
        yield CODE.at(
            span,
            f"{names} is not called",
            notes=("another module reads its parameters directly and would get a shard",),
            help="leave it out; FSDP gathers it with the unit that contains it",
        )


def _never_called(subject: Subject) -> frozenset[str]:
    """Modules with parameters and no known input or output."""
    inventory = subject.inventory
    used = {fqn for module in inventory.modules for fqn in (*module.sources, *module.returns)}
    head = inventory.head
    return frozenset(
        module.fqn
        for module in inventory.modules
        if module.parameters
        and module.kind is not Kind.CONTAINER
        and not module.sources
        and module.fqn not in used
        and (head is None or module.fqn != head.fqn)
    )
