"""Modules that are to get adapters, and that can't have one."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.inventory.adapters import can_have_adapter, is_of_adapter
from planc.inventory.schema import Inventory, Kind, Module
from planc.layouts.families import as_patterns, families, family, quoted

CODE = Code("P770", "not-adaptable", "this module can't have an adapter")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule that names such a module."""
    inventory, seen = subject.inventory, set()
    for fqn, span in subject.bound.adapted.items():
        module = inventory.get(fqn)
        if module is None or can_have_adapter(inventory, fqn) or span in seen:
            continue
        seen.add(span)
        inside = [name for name in inventory.names() if name.startswith(f"{fqn}.")]
        layers = [name for name in inside if can_have_adapter(inventory, name) and not is_of_adapter(name)]
        names = f" inside: {quoted(as_patterns(families(inventory, layers)))}" if layers else " of the model"
        yield CODE.at(
            span,
            f"`{family(inventory, fqn)}` is {_reason(inventory, module)}",
            notes=("an adapter adds to the output of one linear layer",),
            help=f"name the linear layers{names}",
        )


def _reason(inventory: Inventory, module: Module) -> str:
    if module is inventory.head:
        return "the head, whose weight the loss reads"
    if any(f"{module.fqn}.weight" in tie for tie in inventory.ties):
        return "a layer that shares its weight"
    return f"a {module.class_name}" + (", which keeps weights as [in, out]" * (module.kind is Kind.CONV1D))
