"""Mesh dims on which nothing works."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.plan.spec import Plan
from planc.vocab import MeshDim

CODE = Code("P306", "unused-mesh-dim", "no block works on this mesh dim")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each mesh dim of several ranks that would do the same twice, or never sum gradients."""
    plan = subject.plan
    for mesh_dim, size in plan.mesh.sizes.items():
        problem = _problem(plan, mesh_dim) if size > 1 else None
        if problem is not None:
            text, help = problem
            yield CODE.at(plan.span(f"mesh.{mesh_dim}"), f"{size} ranks {text}", help=help)


def _problem(plan: Plan, mesh_dim: MeshDim) -> tuple[str, str] | None:
    """What the ranks of a mesh dim would do, and the way out; None where a block covers it."""
    unsummed = "would never sum their gradients"
    match mesh_dim:
        case MeshDim.TP if plan.tensor_parallel is None:
            return "would all compute the same", "add `tensor_parallel on tp { auto }`, or set tp = 1"
        case MeshDim.CP if plan.context_parallel is None:
            return "would all compute the same", "add `context_parallel on cp { ... }`, or set cp = 1"
        case MeshDim.DP_REPLICATE if plan.fsdp is None:
            help = "add `fsdp on dp_shard { replicate_on = dp_replicate }`, or set dp_replicate = 1"
            return unsummed, help
        case MeshDim.DP_REPLICATE if plan.fsdp is not None and plan.fsdp.replicate_on is None:
            return unsummed, "add `replicate_on = dp_replicate` to `fsdp`, or set dp_replicate = 1"
        case MeshDim.DP_SHARD | MeshDim.CP if plan.fsdp is None:
            return unsummed, f"add `fsdp on {_on(plan, mesh_dim)} {{ ... }}`, or set {mesh_dim} = 1"
        case MeshDim.DP_SHARD | MeshDim.CP if plan.fsdp is not None and mesh_dim not in plan.fsdp.on:
            return unsummed, f"write `fsdp on {_on(plan, mesh_dim)}`, or set {mesh_dim} = 1"
        case _:
            return None


def _on(plan: Plan, mesh_dim: MeshDim) -> str:
    """The mesh dims that `fsdp on` needs, this one included."""
    present = plan.fsdp.on if plan.fsdp else ()
    needed = [dim for dim in (MeshDim.DP_SHARD, MeshDim.CP) if dim in present or plan.mesh.size(dim) > 1]
    return ", ".join(dim for dim in MeshDim if dim in (*needed, mesh_dim))


RULE = Rule((CODE,), check)
