"""Compiled modules that contain FSDP units, offloaded modules or other compiled modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.inventory.schema import Inventory
from planc.layouts.families import family
from planc.source import Span
from planc.vocab import ancestors

UNIT = Code("P808", "compiled-around-unit", "a compiled module contains an FSDP unit")
NESTED = Code("P809", "nested-regions", "a module is compiled inside another", Severity.WARNING)
OFFLOADED = Code("P813", "compiled-around-offload", "a compiled module contains an offloaded one")


@reports(UNIT, NESTED, OFFLOADED)
def check(subject: Subject) -> Findings:
    """One finding for each pair of rules, one of which names modules inside those that the other compiles."""
    bound, inventory = subject.bound, subject.inventory
    # Compiled code ends before experts that tokens are dispatched to: see P623.
    units = {fqn: group.span for group in bound.units for fqn in group.fqns if fqn not in bound.experts}
    for outer, unit in _pairs(bound.compiled, units):
        yield UNIT.at(
            bound.compiled[outer],
            f"`{family(inventory, outer)}` is compiled as one graph",
            secondary=(Label(units[unit], f"`{family(inventory, unit)}` is gathered here"),),
            notes=("FSDP gathers between modules, which is impossible inside a traced graph",),
            help=_help(inventory, unit),
        )
    offloaded = {fqn: span for fqn, span in bound.checkpointed.items() if fqn in bound.offloaded}
    for outer, inner in _pairs(bound.compiled, offloaded):
        yield OFFLOADED.at(
            bound.compiled[outer],
            f"`{family(inventory, outer)}` is compiled as one graph",
            secondary=(Label(offloaded[inner], f"`{family(inventory, inner)}` is offloaded here"),),
            notes=("torch.compile can't trace copies to the host's memory, so the first step would fail",),
            help=f'offload what is compiled: `"{family(inventory, outer)}" -> offload`',
        )
    for outer, inner in _pairs(bound.compiled, bound.compiled):
        yield NESTED.at(
            bound.compiled[inner],
            f"`{family(inventory, inner)}` is part of `{family(inventory, outer)}`",
            secondary=(Label(bound.compiled[outer], "compiled here with everything inside it"),),
            help="remove the rule for the inner module",
        )


def _pairs(outside: Mapping[str, Span], inside: Mapping[str, Span]) -> Iterator[tuple[str, str]]:
    """(outer, inner) modules, the first of each pair of rules."""
    seen: set[tuple[Span, Span]] = set()
    for inner, span in inside.items():
        outer = min((fqn for fqn in ancestors(inner) if fqn in outside), key=len, default=None)
        if outer is not None and (outside[outer], span) not in seen:
            seen.add((outside[outer], span))
            yield outer, inner


def _help(inventory: Inventory, unit: str) -> str:
    return f'compile the unit\'s modules instead: `"{family(inventory, unit)}" -> region`'
