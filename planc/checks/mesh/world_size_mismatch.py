"""A mesh of another size than the world."""

from __future__ import annotations

from typing import assert_never

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.elastic_meshes import smaller_plans
from planc.plan.spec import Plan
from planc.vocab import MeshDim

CODE = Code("P301", "world-size-mismatch", "the mesh does not match the world size")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the mesh if the world size is known and is not the product of the dims."""
    mesh, started = subject.plan.mesh, subject.world_size
    if started is None or started == mesh.world_size:
        return
    factors = [f"{mesh_dim} = {size}" for mesh_dim, size in mesh.sizes.items() if size > 1]
    fits = [
        f"{mesh_dim} = {started * mesh.size(mesh_dim) // mesh.world_size}"
        for mesh_dim in (MeshDim.DP_SHARD, MeshDim.DP_REPLICATE, MeshDim.CP, MeshDim.TP, MeshDim.PP)
        if started * mesh.size(mesh_dim) % mesh.world_size == 0 and _can_use(subject.plan, mesh_dim)
    ]
    smaller = "".join(f" or {plan.mesh.world_size}" for plan in smaller_plans(subject.plan))
    product = f"{' x '.join(factors)} needs" if factors else "a mesh of one rank needs"
    yield CODE.at(
        subject.plan.span("mesh"),
        f"{product} {mesh.world_size} ranks; the world size is {started}",
        help=f"start {mesh.world_size}{smaller} ranks"
        + (f", or set {' or '.join(f'`{fit}`' for fit in fits)}" if fits else ""),
    )


def _can_use(plan: Plan, mesh_dim: MeshDim) -> bool:
    """Whether a plan may give a mesh dim more ranks: something shards or replicates over it."""
    if plan.mesh.size(mesh_dim) > 1:
        return True
    match mesh_dim:
        case MeshDim.PP:
            return plan.pipeline is not None
        case MeshDim.DP_REPLICATE:
            return plan.fsdp is None or plan.fsdp.replicate_on is mesh_dim
        case MeshDim.DP_SHARD:
            return plan.fsdp is not None and mesh_dim in plan.fsdp.on
        case MeshDim.CP:
            return plan.context_parallel is not None
        case MeshDim.TP:
            return plan.tensor_parallel is not None
        case _:
            assert_never(mesh_dim)
