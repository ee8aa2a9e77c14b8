"""FSDP without a unit for each layer."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.families import runs
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity

CODE = Code("P502", "no-block-unit", "layers are not FSDP units of their own", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning for each repeated block of which some member is in no unit, nor made of units."""
    fsdp, mesh = subject.plan.fsdp, subject.plan.mesh
    if fsdp is None or all(mesh.size(mesh_dim) == 1 for mesh_dim in fsdp.on):
        return
    inside = {prefix for group in subject.bound.units for fqn in group.fqns for prefix in _prefixes(fqn)}
    for block in subject.inventory.blocks:
        names = [name for name in subject.inventory.names() if name.rpartition(".")[0] == block]
        layers = [name.rpartition(".")[2] for name in names if name not in inside]
        if layers and all(layer.isdecimal() for layer in layers):
            numbers = runs([int(layer) for layer in layers])
            missing = f"`{block}.{numbers if len(layers) == 1 else f'{{{numbers}}}'}`"
            yield CODE.at(
                fsdp.span,
                f"no unit for {f'the members of `{block}`' if len(layers) == len(names) else missing}",
                notes=("what is in no unit is gathered before the first layer, and kept to the end",),
                help=f'add `"{block}.*" -> unit`',
            )


def _prefixes(fqn: str) -> Iterator[str]:
    """A module and everything that holds it."""
    parts = fqn.split(".")
    for depth in range(1, len(parts) + 1):
        yield ".".join(parts[:depth])


RULE = Rule((CODE,), check)
