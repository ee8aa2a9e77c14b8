"""The FSDP units that gather modules, and edits that make FSDP cover a mesh dim."""

from __future__ import annotations

from collections.abc import Mapping

from planc.checks.support.rule import Subject
from planc.plan.spec import Plan
from planc.plan.units import UnitGroup
from planc.vocab import SHARD_DIMS, DType, MeshDim, outwards


def group_by_module(units: tuple[UnitGroup, ...]) -> Mapping[str, UnitGroup]:
    """The unit of each module that a rule names."""
    return {fqn: group for group in units for fqn in group.fqns}


def covering_block(subject: Subject, mesh_dim: MeshDim) -> str:
    """The edit that makes `fsdp` cover a mesh dim; for a plan without `fsdp`, a whole block."""
    plan = subject.plan
    if plan.fsdp is None:
        return f"add `{_block(subject, mesh_dim)}`"
    if mesh_dim is MeshDim.DP_REPLICATE:
        return "add `replicate_on = dp_replicate` to `fsdp`"
    return f"write `{_header(plan, mesh_dim)}`"


def stored_in_float32(subject: Subject) -> str:
    """The edit that stores parameters in float32, and one that keeps computing in bfloat16."""
    if subject.plan.fsdp is not None:
        return "write `dtype = float32`, and `param_dtype = bfloat16` in `fsdp` for compute"
    block = _block(subject, MeshDim.DP_SHARD, "param_dtype = bfloat16")
    return f"write `dtype = float32`; to compute in bfloat16, add `{block}`"


def cast_to(subject: Subject, dtype: DType) -> str:
    """The edit that computes in a dtype whatever parameters are stored in."""
    if subject.plan.fsdp is not None:
        return f"add `param_dtype = {dtype}` to `fsdp`"
    return f"add `{_block(subject, MeshDim.DP_SHARD, f'param_dtype = {dtype}')}`"


def _block(subject: Subject, mesh_dim: MeshDim, *settings: str) -> str:
    """A whole `fsdp` block, for a plan that has none."""
    plan = subject.plan
    replicate = ["replicate_on = dp_replicate"] if plan.mesh.dp_replicate > 1 else []
    units = [f'"{block}.*" -> unit' for block in subject.inventory.blocks]
    return f"{_header(plan, mesh_dim)} {{ {', '.join((*replicate, *settings, *units))} }}"


def _header(plan: Plan, mesh_dim: MeshDim) -> str:
    """`fsdp on dp_shard, cp`: the mesh dim, and the dims that are or must be covered."""
    present = plan.fsdp.on if plan.fsdp else ()
    on = [dim for dim in SHARD_DIMS if dim is mesh_dim or dim in present or plan.mesh.size(dim) > 1]
    return f"fsdp on {', '.join(on)}"


def owner(groups: Mapping[str, UnitGroup], fqn: str) -> UnitGroup | None:
    """The innermost unit that holds a module; None for the root's."""
    return next((groups[name] for name in outwards(fqn) if name in groups), None)
