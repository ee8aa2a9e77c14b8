"""Mesh dims whose ranks see different tokens and never meet."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.spec import Plan
from planc.vocab import MeshDim

CODE = Code("P308", "gradients-unsummed", "gradients are never summed over this mesh dim")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each mesh dim that divides the data and that `fsdp` does not cover."""
    plan = subject.plan
    for mesh_dim in (MeshDim.DP_REPLICATE, MeshDim.DP_SHARD, MeshDim.CP):
        size = plan.mesh.size(mesh_dim)
        is_idle = mesh_dim is MeshDim.CP and plan.context_parallel is None
        if size > 1 and not is_idle and not _is_covered(plan, mesh_dim):
            yield CODE.at(
                plan.span(f"mesh.{mesh_dim}"),
                f"{size} ranks would each train a model of their own",
                help=f"{_remedy(plan, mesh_dim)}, or set {mesh_dim} = 1",
            )


def _is_covered(plan: Plan, mesh_dim: MeshDim) -> bool:
    fsdp = plan.fsdp
    if fsdp is None:
        return False
    # Another value of replicate_on is a finding of its own.
    return mesh_dim in fsdp.on or (mesh_dim is MeshDim.DP_REPLICATE and fsdp.replicate_on is not None)


def _remedy(plan: Plan, mesh_dim: MeshDim) -> str:
    if mesh_dim is MeshDim.DP_REPLICATE:
        if plan.fsdp is None:
            return "add `fsdp on dp_shard { replicate_on = dp_replicate }`"
        return "add `replicate_on = dp_replicate` to `fsdp`"
    present = plan.fsdp.on if plan.fsdp else ()
    on = [
        dim
        for dim in (MeshDim.DP_SHARD, MeshDim.CP)
        if dim is mesh_dim or dim in present or plan.mesh.size(dim) > 1
    ]
    header = f"fsdp on {', '.join(on)}"
    return f"write `{header}`" if plan.fsdp else f"add `{header} {{ ... }}`"


RULE = Rule((CODE,), check)
