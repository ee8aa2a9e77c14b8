"""Modules that tokens are dispatched to, and that are not stacked experts."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.routers import dispatchable, is_dispatchable
from planc.inventory.schema import Inventory, Module
from planc.layouts.families import as_patterns, families, family, quoted

CODE = Code("P620", "not-dispatchable", "tokens can't be dispatched to this module")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule that names another module, and one for `auto` without any experts."""
    spec, inventory = subject.plan.expert_parallel, subject.inventory
    if spec is None:
        return
    known = as_patterns(families(inventory, [module.fqn for module in dispatchable(inventory)]))
    if spec.auto is not None and not known:
        yield CODE.at(
            spec.auto.span,
            f"{inventory.architecture} has no experts that a router sends tokens to",
            notes=(_WHY,),
            help="remove the block `expert_parallel`",
        )
    seen = set()
    for fqn, span in {**subject.bound.experts, **subject.bound.capped}.items():
        module = inventory.get(fqn)
        if module is None or is_dispatchable(inventory, module) or span in seen:
            continue
        seen.add(span)
        yield CODE.at(
            span,
            f"`{family(inventory, fqn)}` {_reason(inventory, module)}",
            notes=(_WHY,),
            help=f"name {quoted(known)}, or write `auto`" if known else "remove the block `expert_parallel`",
        )


_WHY = "experts take the numbers and weights of each token's experts, and their weights are stacked"


def _reason(inventory: Inventory, module: Module) -> str:
    if not module.parameters:
        return f"is a {module.class_name}, which owns no weights of experts"
    if module.routing is None:
        return f"is a {module.class_name}, which takes no numbers of experts"
    return f"is a {module.class_name}, whose weights don't have a part for each expert"
