"""The stages of a pipeline: which modules each has, and what its ranks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from planc.inventory.products import products
from planc.inventory.schema import Inventory
from planc.pipelining.balance import balance
from planc.pipelining.orders import Order, Schedule, make_orders
from planc.plan.bind import BoundPlan
from planc.plan.pipeline_schedule import GPipe, Interleaved, OneFOneB, ZeroBubble
from planc.plan.spec import PipelineSpec
from planc.vocab import outwards, parent_of


def num_stages(bound: BoundPlan, pipeline: PipelineSpec) -> int:
    return bound.plan.mesh.pp * pipeline.stages_per_rank


def layers(inventory: Inventory) -> tuple[str, ...]:
    """The members of the model's list of layers, in order; none if it has several lists."""
    return inventory.layers() if len(inventory.blocks) == 1 else ()


def stages(bound: BoundPlan, pipeline: PipelineSpec) -> tuple[tuple[str, ...], ...]:
    """The modules of each stage, in the model's order; no stages if there are fewer layers.

    What the first layer reads belongs to the first stage, and what reads the last layer to the last. A module
    without parameters runs on every stage.
    """
    members = layers(bound.inventory)
    number = num_stages(bound, pipeline)
    if len(members) < number:
        return ()
    if not pipeline.rules:
        return balanced_stages(bound, pipeline)
    by_stage: list[list[str]] = [[] for _ in range(number)]
    for name in members:
        stage, _ = bound.stage_of.get(name, (number, None))
        if stage < number:
            by_stage[stage].append(name)
    return _with_outer(bound.inventory, by_stage)


def balanced_stages(bound: BoundPlan, pipeline: PipelineSpec) -> tuple[tuple[str, ...], ...]:
    """The stages whose costliest one costs least: see `planc.pipelining.balance`.

    ValueError if there are fewer layers than stages.
    """
    members = layers(bound.inventory)
    *costs, first, last = stage_costs(
        bound, [*([layer] for layer in members), *_outer(bound.inventory, members)]
    )
    sizes = balance(costs, num_stages=num_stages(bound, pipeline), first=first, last=last)
    bounds = pairwise(accumulate(sizes, initial=0))
    return _with_outer(bound.inventory, [members[start:end] for start, end in bounds])


def sending_layers(bound: BoundPlan, pipeline: PipelineSpec) -> tuple[str, ...]:
    """The last layer of each stage but the last: its output is what the stage sends."""
    members = frozenset(layers(bound.inventory))
    found = stages(bound, pipeline)[:-1]
    return tuple(next(name for name in reversed(names) if name in members) for names in found)


def orders(pipeline: PipelineSpec, *, num_ranks: int, num_micro_batches: int) -> tuple[Order, ...]:
    """Return the actions of each pp rank in a step."""
    match pipeline.schedule:
        case GPipe():
            schedule = Schedule.GPIPE
        case OneFOneB():
            schedule = Schedule.ONE_F_ONE_B
        case Interleaved():
            schedule = Schedule.INTERLEAVED
        case ZeroBubble():
            schedule = Schedule.ZERO_BUBBLE
    return make_orders(
        schedule,
        num_ranks=num_ranks,
        stages_per_rank=pipeline.stages_per_rank,
        num_micro_batches=num_micro_batches,
    )


def stage_costs(bound: BoundPlan, modules: Sequence[Sequence[str]]) -> list[int]:
    """The cost of each stage: the multiply-adds of its modules for one token, as `flops_per_token` counts.

    An embedding counts nothing, the head its whole weight.
    """
    index = stage_by_name(modules)
    costs = [0] * len(modules)
    for name, count in products(bound.inventory, bound.plan.data.sequence_length):
        stage = stage_of(name, index)
        if stage is not None:
            costs[stage] += count
    return costs


def stage_by_name(found: Sequence[Sequence[str]]) -> Mapping[str, int]:
    """The stage of each module that stages name."""
    return {name: stage for stage, names in enumerate(found) for name in names}


def stage_of(fqn: str, by_name: Mapping[str, int]) -> int | None:
    """The stage of a module or of one around it; None for what every stage has."""
    return next((by_name[name] for name in outwards(fqn) if name in by_name), None)


def ties_of_ends(bound: BoundPlan) -> tuple[tuple[str, ...], ...]:
    """The tied parameters that the first and the last stage both have, and no other; none without pp.

    The owner's name is in the first stage.
    """
    pipeline = bound.plan.pipeline
    if pipeline is None or bound.plan.mesh.pp == 1:
        return ()
    found = stages(bound, pipeline)
    by_name, ends = stage_by_name(found), {0, len(found) - 1}
    return tuple(
        tie
        for tie in bound.inventory.ties
        if (holders := [stage_of(parent_of(name), by_name) for name in tie])[0] == 0 and set(holders) == ends
    )


def _with_outer(inventory: Inventory, by_stage: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The layers of each stage, with what precedes and follows all layers."""
    before, after = _outer(inventory, layers(inventory))
    return ((*before, *by_stage[0]), *map(tuple, by_stage[1:-1]), (*by_stage[-1], *after))


def _outer(inventory: Inventory, members: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules with parameters of their own that belong to no layer: those before the layers, and after."""
    inside = tuple(f"{name}." for name in members)
    names = [
        module.fqn
        for module in inventory.modules
        if module.fqn and module.parameters and not f"{module.fqn}.".startswith(inside)
    ]
    # A module inside of another one goes with it.
    names = [name for name in names if not name.startswith(tuple(f"{other}." for other in names))]
    reached = _reaching(inventory, members[0])
    before = tuple(name for name in names if name in reached)
    return before, tuple(name for name in names if name not in reached)


def _reaching(inventory: Inventory, layer: str) -> frozenset[str]:
    """Modules whose outputs reach a layer."""
    reaching: set[str] = set()
    waiting = [layer]
    while waiting:
        module = inventory.get(waiting.pop())
        for source in module.sources if module is not None else ():
            if source not in reaching:
                reaching.add(source)
                waiting.append(source)
    return frozenset(reaching)
