"""A mesh of another size than the world."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.elastic_meshes import smaller_plans
from planc.vocab import MeshDim

CODE = Code("P301", "world-size-mismatch", "the mesh does not match the world size")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the mesh if the world size is known and is not the product of the dims."""
    mesh, started = subject.plan.mesh, subject.world_size
    if started is None or started == mesh.world_size:
        return
    factors = [f"{mesh_dim} = {size}" for mesh_dim, size in mesh.sizes.items() if size > 1]
    fits = [
        f"{mesh_dim} = {started * mesh.size(mesh_dim) // mesh.world_size}"
        for mesh_dim in (MeshDim.DP_SHARD, MeshDim.DP_REPLICATE, MeshDim.CP, MeshDim.TP)
        if started * mesh.size(mesh_dim) % mesh.world_size == 0
    ]
    smaller = "".join(f" or {one.mesh.world_size}" for one in smaller_plans(subject.plan))
    product = f"{' x '.join(factors)} needs" if factors else "a mesh of one rank needs"
    yield CODE.at(
        subject.plan.span("mesh"),
        f"{product} {mesh.world_size} ranks; the world size is {started}",
        help=f"start {mesh.world_size}{smaller} ranks"
        + (f", or set {' or '.join(f'`{one}`' for one in fits)}" if fits else ""),
    )


RULE = Rule((CODE,), check)
