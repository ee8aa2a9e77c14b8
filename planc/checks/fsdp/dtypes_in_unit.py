"""FSDP units whose parameters have several dtypes."""

from __future__ import annotations

from collections.abc import Sequence

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.layouts.families import families, quoted
from planc.plan.unit_dtypes import adapters_dtype, other_dtypes, parameters_by_unit
from planc.source import Span
from planc.vocab import DType, parent_of

CODE = Code("P736", "dtypes-in-unit", "an FSDP unit mixes dtypes")

_MAX_LISTED = 3


@reports(CODE, block="fsdp")
def check(subject: Subject) -> Findings:
    """One finding for each rule whose units hold parameters of more than one dtype."""
    plan, bound = subject.plan, subject.bound
    if plan.fsdp is None:
        return
    dtypes = other_dtypes(plan, bound.inventory)
    if not dtypes:
        return
    # Next to adapters of another dtype, only what is trained must be of one.
    aside = bound.frozen.keys() - dtypes.keys() if adapters_dtype(plan) is not plan.model.dtype else ()
    spans = {group.fqns: group.span for group in bound.units}
    mixed: dict[Span, list[tuple[str, DType]]] = {}
    for unit, parameters in parameters_by_unit(bound).items():
        stored = {name: dtypes.get(name, plan.model.dtype) for name in parameters if name not in aside}
        if len(set(stored.values())) > 1:
            others = [(name, dtype) for name, dtype in stored.items() if dtype is not plan.model.dtype]
            mixed.setdefault(spans.get(unit, plan.fsdp.span), []).extend(others)
    for span, others in mixed.items():
        dtype = others[0][1]
        names = families(subject.inventory, [name for name, other in others if other is dtype])
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        yield CODE.at(
            span,
            f"{quoted(names[:_MAX_LISTED])}{more} in {dtype}, the rest of the unit in {plan.model.dtype}",
            notes=("FSDP gathers a unit as one tensor, and rejects a unit of several dtypes",),
            help=_help(subject, [name for name, _ in others]),
        )


def _help(subject: Subject, others: Sequence[str]) -> str:
    """Units of their own for modules that hold nothing else."""
    owners = {parent_of(name) for name in others}
    modules = [module for module in subject.inventory.modules if module.parameters]
    inside = [
        module for module in modules if any(f"{module.fqn}.".startswith(f"{owner}.") for owner in owners)
    ]
    held = {f"{module.fqn}.{parameter.name}" for module in inside for parameter in module.parameters}
    if held <= set(others) and "" not in owners:
        patterns = subject.patterns(sorted(owners))
        rules = ", ".join(f'"{pattern}" -> unit' for pattern in patterns)
        return f"add `{rules}` to `fsdp`, which makes them units of their own"
    return "write `dtype = float32` in `model`"
