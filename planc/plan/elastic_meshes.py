"""The plans of an elastic plan: one for each world size that it can run on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planc.plan.facts import tokens_per_step
from planc.plan.spec import Plan


def smaller_plans(plan: Plan) -> Iterator[Plan]:
    """The plan on each of the smaller meshes that it allows, with the tokens of a step as they are.

    Nothing if the `elastic` block has errors, which are reported elsewhere. Expectations are left out:
    they apply to the mesh as it is written.
    """
    elastic = plan.elastic
    if elastic is None or len(elastic.on) != 1:
        return
    (mesh_dim,) = elastic.on
    train = replace(plan.train, tokens_per_step=tokens_per_step(plan))
    for size in sorted(set(elastic.sizes), reverse=True):
        if size < plan.mesh.size(mesh_dim):
            sizes: dict[str, Any] = {mesh_dim.value: size}
            mesh = replace(plan.mesh, **sizes)
            yield replace(plan, mesh=mesh, train=train, elastic=None, expectations=())


def started_on(plan: Plan, world_size: int | None) -> Plan:
    """The plan as a launch of `world_size` ranks runs it: itself, or the largest smaller one that they fill.

    Ranks that are left over wait: torchrun starts any number of nodes of its range.
    """
    if world_size is None or world_size >= plan.mesh.world_size:
        return plan
    return next((one for one in smaller_plans(plan) if one.mesh.world_size <= world_size), plan)


def shrinking_note(smaller: Plan) -> str:
    """The note on a finding that only occurs on a smaller mesh."""
    sizes = " x ".join(f"{mesh_dim} {size}" for mesh_dim, size in smaller.mesh.sizes.items() if size > 1)
    return f"this happens on {sizes or 'one rank'}, a smaller mesh that `elastic` allows"
