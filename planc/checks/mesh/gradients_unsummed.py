"""Mesh dims whose ranks see different tokens and never sum their gradients."""

from __future__ import annotations

from planc.checks.fsdp.fsdp_groups import covering_block
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.spec import Plan
from planc.vocab import TOKEN_DIMS, MeshDim

CODE = Code("P308", "gradients-unsummed", "gradients are never summed over this mesh dim")


@reports(CODE, unless_refused=True)
def check(subject: Subject) -> Findings:
    """One finding for each mesh dim that shards the data and that `fsdp` does not cover."""
    plan = subject.plan
    for mesh_dim in TOKEN_DIMS:
        size = plan.mesh.size(mesh_dim)
        is_idle = mesh_dim is MeshDim.CP and plan.context_parallel is None
        if size > 1 and not is_idle and not _is_covered(plan, mesh_dim):
            yield CODE.at(
                plan.span(f"mesh.{mesh_dim}"),
                f"{size} ranks would each train their own model",
                help=f"{covering_block(subject, mesh_dim)}, or set `{mesh_dim}` to 1",
            )


def _is_covered(plan: Plan, mesh_dim: MeshDim) -> bool:
    fsdp = plan.fsdp
    if fsdp is None:
        # Whole replicas: `grads.all_reduce` sums their gradients.
        return mesh_dim is MeshDim.DP_REPLICATE
    # Any other value of replicate_on has a rule of its own.
    return mesh_dim in fsdp.on or (mesh_dim is MeshDim.DP_REPLICATE and fsdp.replicate_on is not None)
