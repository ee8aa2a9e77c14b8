"""The stages of a pipeline: which modules each has."""

from __future__ import annotations

from collections.abc import Iterable

from planc.inventory.schema import Inventory
from planc.pipelining.balance import balance
from planc.plan.bind import BoundPlan
from planc.plan.spec import PipelineSpec


def num_stages(bound: BoundPlan, pipeline: PipelineSpec) -> int:
    return bound.plan.mesh.pp * pipeline.stages_per_rank


def layers(inventory: Inventory) -> tuple[str, ...]:
    """The members of the model's list of layers, in order; none if it has several lists."""
    if len(inventory.blocks) != 1:
        return ()
    prefix = f"{inventory.blocks[0]}."
    return tuple(
        name for name in inventory.names() if name.startswith(prefix) and "." not in name[len(prefix) :]
    )


def stages(bound: BoundPlan, pipeline: PipelineSpec) -> tuple[tuple[str, ...], ...]:
    """The modules of each stage, in the model's order.

    What the first layer reads belongs to the first stage, and what reads the last layer to the last. A module
    without parameters runs on every stage.
    """
    members = layers(bound.inventory)
    sizes = _sizes(bound, pipeline, members)
    before = set(_before(bound.inventory, members))
    outside = [name for name in _outside(bound.inventory, members) if name not in before]
    found: list[list[str]] = []
    start = 0
    for size in sizes:
        found.append([*members[start : start + size]])
        start += size
    found[0] = [*(name for name in _outside(bound.inventory, members) if name in before), *found[0]]
    found[-1] = [*found[-1], *outside]
    return tuple(map(tuple, found))


def _sizes(bound: BoundPlan, pipeline: PipelineSpec, members: tuple[str, ...]) -> tuple[int, ...]:
    """The number of layers of each stage: by the plan's rules, else balanced."""
    number = num_stages(bound, pipeline)
    if not pipeline.rules:
        return balance([1.0] * len(members), num_stages=number)
    return tuple(sum(bound.stage_of[name][0] == stage for name in members) for stage in range(number))


def _outside(inventory: Inventory, members: Iterable[str]) -> tuple[str, ...]:
    """Modules with parameters of their own that belong to no layer."""
    inside = tuple(f"{name}." for name in members)
    return tuple(
        module.fqn
        for module in inventory.modules
        if module.fqn and module.parameters and not f"{module.fqn}.".startswith(inside)
    )


def _before(inventory: Inventory, members: tuple[str, ...]) -> frozenset[str]:
    """Modules whose outputs reach the first layer."""
    found: set[str] = set()
    waiting = [members[0]]
    while waiting:
        module = inventory.get(waiting.pop())
        for source in module.sources if module is not None else ():
            if source not in found:
                found.add(source)
                waiting.append(source)
    return frozenset(found)
