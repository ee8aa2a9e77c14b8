"""Tied parameters in two FSDP units."""

from __future__ import annotations

from planc.checks.fsdp.fsdp_groups import group_by_module, owner
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import quoted
from planc.plan.stages import ties_of_ends
from planc.vocab import MeshDim, parent_of

CODE = Code("P503", "tied-parameters-apart", "tied parameters are in different FSDP units")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each tie that is in two units, at the unit to change."""
    fsdp, mesh = subject.plan.fsdp, subject.plan.mesh
    if fsdp is None or all(mesh.size(mesh_dim) == 1 for mesh_dim in (*fsdp.on, MeshDim.DP_REPLICATE)):
        return
    groups = group_by_module(subject.bound.units)
    # Each end of a pipeline shards a copy of its own.
    copied = ties_of_ends(subject.bound)
    for tie in (tie for tie in subject.inventory.ties if tie not in copied):
        modules = [parent_of(name) for name in tie]
        owners = [owner(groups, fqn) for fqn in modules]
        if all(group == owners[0] for group in owners):
            continue
        placed = [(fqn, group) for fqn, group in zip(modules, owners, strict=True) if group is not None]
        fqn, group = placed[-1]
        yield CODE.at(
            group.span,
            f"`{fqn}` is gathered by this unit",
            secondary=tuple(
                Label(other.span, f"`{name}` is gathered here")
                for name, other in placed[:-1]
                if other.span != group.span
            ),
            notes=(f"{quoted(tie)} are one parameter, and only one unit can shard it",),
            help=f"put {quoted(modules)} into one unit, or neither of them into a unit",
        )
