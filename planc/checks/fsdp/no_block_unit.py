"""FSDP without a unit for each layer."""

from __future__ import annotations

from collections.abc import Mapping

from planc.checks.patterns.pattern_unmatched import CODE as PATTERN_UNMATCHED
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.inventory.schema import Inventory
from planc.layouts.families import runs
from planc.vocab import outwards

CODE = Code("P502", "no-block-unit", "layers are not separate FSDP units", Severity.WARNING)


@reports(CODE, block="fsdp", unless=(PATTERN_UNMATCHED,))
def check(subject: Subject) -> Findings:
    """One warning for each repeated block with a member mostly outside of units."""
    fsdp, mesh = subject.plan.fsdp, subject.plan.mesh
    if fsdp is None or all(mesh.size(mesh_dim) == 1 for mesh_dim in fsdp.on):
        return
    is_split = subject.plan.pipeline is not None and mesh.pp > 1
    holder = "one unit of each stage" if is_split else "the root unit"
    first = "the stage's first layer" if is_split else "the first layer"
    units = frozenset(fqn for group in subject.bound.units for fqn in group.fqns)
    sizes = _sizes(subject.inventory, units)
    for block in subject.inventory.blocks:
        names = subject.inventory.members(block)
        layers = [name.rpartition(".")[2] for name in names if not _is_in_units(name, sizes, units)]
        if layers and all(layer.isdecimal() for layer in layers):
            numbers = runs([int(layer) for layer in layers])
            has_some = any(unit.startswith(f"{block}.{layers[0]}.") for unit in units)
            most = "most parameters of " if has_some else ""
            missing = f"`{block}.{numbers if len(layers) == 1 else f'{{{numbers}}}'}`"
            yield CODE.at(
                fsdp.span,
                f"no unit for {most}{f'the members of `{block}`' if len(layers) == len(names) else missing}",
                notes=(f"{holder} would gather these parameters before {first}, and keep them",),
                help=f'add `"{block}.*" -> unit`',
            )


def _is_in_units(name: str, sizes: Mapping[str, tuple[int, int]], units: frozenset[str]) -> bool:
    """Whether a member is a unit, or at least half of its parameters are in units below it."""
    inside, whole = sizes.get(name, (0, 0))
    return name in units or (whole > 0 and 2 * inside >= whole)


def _sizes(inventory: Inventory, units: frozenset[str]) -> Mapping[str, tuple[int, int]]:
    """(elements in units below it, all its elements) of each member of a repeated block."""
    sizes: dict[str, tuple[int, int]] = {}
    for _, module, parameter in inventory.parameters():
        names = tuple(outwards(module.fqn))
        for name in names:
            if inventory.is_layer(name):
                inside, whole = sizes.get(name, (0, 0))
                is_below = any(one in units for one in names if len(one) > len(name))
                sizes[name] = inside + is_below * parameter.num_elements, whole + parameter.num_elements
    return sizes
