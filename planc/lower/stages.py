"""A pipeline as ops: its split, the order of its micro-batches, and what stages send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, TypeVar

from planc.graph import ops
from planc.layouts.entry import handed_on
from planc.layouts.flow import layout_flow
from planc.pipelining.orders import Order
from planc.pipelining.simulate import equal_step
from planc.plan import spec
from planc.plan.bind import BoundPlan
from planc.plan.facts import gradient_accumulation
from planc.plan.loss_chunks import num_chunks
from planc.plan.pipeline_schedule import ZeroBubble
from planc.plan.spec import PipelineSpec
from planc.plan.stages import layers, num_stages, orders, sending_layers, stages, ties_of_ends
from planc.plan.unit_dtypes import compute_dtypes, parameters_by_unit
from planc.plan.units import UnitGroup
from planc.record import record
from planc.styles.edges import SEQUENCE
from planc.vocab import DType, MeshDim

Run = TypeVar("Run", ops.Forward, ops.Backward)


def split_pipeline(bound: BoundPlan) -> Iterator[ops.SplitPipeline]:
    """The modules of each stage, if there are several."""
    plan, inventory, pipeline = bound.plan, bound.inventory, _pipeline(bound)
    modules = stages(bound, pipeline) if pipeline is not None else ()
    if pipeline is None or inventory.head is None or not modules:
        return  # A draft of a plan that checks refuse may have no stages.
    sequences = _sequence_layouts(bound, pipeline)
    yield ops.SplitPipeline(
        stages=modules,
        blocks=inventory.blocks[0],
        head=_with_head(inventory.head.fqn, modules[-1]),
        shape=(plan.data.micro_batch, sequences.sent_length, inventory.hidden_size),
        dtype=_dtype(bound),
        over=pipeline.on,
        max_sends=_max_sends(bound, pipeline),
        ties=ties_of_ends(bound),
        deferred=_deferred(bound),
        on_shards=sequences.on_shards,
        span=pipeline.span,
    )


def _with_head(head: str, last: Iterable[str]) -> str:
    """The head, or the module of the last stage that it is in: one with parameters of its own stays whole."""
    return next((name for name in last if _is_within(head, (name,))), head)


def sum_ties(bound: BoundPlan) -> Iterator[ops.SumTies]:
    """One op, if two stages train the same weight."""
    if any(owner not in bound.frozen for owner, *_ in ties_of_ends(bound)):
        yield ops.SumTies(over=(MeshDim.PP,), span=bound.plan.span("pipeline"))


def micro_orders(bound: BoundPlan) -> tuple[Order, ...]:
    """Return the actions of each pp rank in a step, in order; empty without a pipeline."""
    pipeline = _pipeline(bound)
    return () if pipeline is None else _orders(bound, pipeline)


def _max_sends(bound: BoundPlan, pipeline: spec.PipelineSpec) -> int:
    """The sends that equal stages have under way; one for a draft whose steps have no micro-batch."""
    found = _orders(bound, pipeline)
    return equal_step(found, num_stages=num_stages(bound, pipeline)).max_sends if found else 1


def _orders(bound: BoundPlan, pipeline: spec.PipelineSpec) -> tuple[Order, ...]:
    times = gradient_accumulation(bound.plan)
    return orders(pipeline, num_ranks=bound.plan.mesh.pp, num_micro_batches=times) if times else ()


def passed(
    bound: BoundPlan, op: Run, what: Literal["activations", "gradients"]
) -> Iterator[ops.ReceiveHidden | Run | ops.SendHidden]:
    """A forward or backward, between what its stage receives and what it sends."""
    pipeline = _pipeline(bound)
    if pipeline is None:
        yield op
        return
    yield ops.ReceiveHidden(what=what, over=pipeline.on, span=pipeline.span)
    yield op
    yield ops.SendHidden(what=what, over=pipeline.on, span=pipeline.span)


def weight_gradients(bound: BoundPlan, over: tuple[MeshDim, ...]) -> Iterator[ops.ComputeWeightGradients]:
    """One op, if the schedule has the gradients of weights apart."""
    pipeline = _pipeline(bound)
    if pipeline is not None and isinstance(pipeline.schedule, ZeroBubble):
        yield ops.ComputeWeightGradients(over=over, span=pipeline.span)


def _deferred(bound: BoundPlan) -> tuple[str, ...]:
    """The linear layers whose weights have gradients apart; not a head whose forward computes its own."""
    pipeline, inventory = _pipeline(bound), bound.inventory
    if pipeline is None or not isinstance(pipeline.schedule, ZeroBubble):
        return ()
    head = inventory.head if num_chunks(bound) > 1 else None
    linear = (module.fqn for module in inventory.modules if module.is_linear and module is not head)
    return tuple(fqn for fqn in linear if f"{fqn}.weight" not in bound.frozen)


def _pipeline(bound: BoundPlan) -> spec.PipelineSpec | None:
    return bound.plan.pipeline if bound.plan.mesh.pp > 1 else None


def _dtype(bound: BoundPlan) -> DType:
    """The dtype that the layers compute in."""
    if bound.plan.fsdp is None:
        return bound.plan.model.dtype
    members, held = layers(bound.inventory), parameters_by_unit(bound)
    wanted = (
        dtype
        for unit, dtype in compute_dtypes(bound).items()
        if dtype is not None and any(_is_within(parameter, members) for parameter in held.get(unit, ()))
    )
    return next(wanted, bound.plan.model.dtype)


def units_of_stages(bound: BoundPlan, root: UnitGroup) -> Iterator[UnitGroup]:
    """Yield the units of each stage that the root of FSDP would hold in a pipeline.

    The root is gathered for backward when a gradient reaches the model's output, which is in the last stage
    only: no backward of another stage would find its parameters. It would also be gathered in the forward of
    every stage of a rank; these are, in their own stage's. Layers have a unit apart from what is before and
    after them, which is freed as soon as it ran.
    """
    pipeline = _pipeline(bound)
    if pipeline is None:
        return
    in_units = tuple(fqn for group in bound.units for fqn in group.fqns)
    members, loose = layers(bound.inventory), parameters_by_unit(bound).get(root.fqns, ())
    found = stages(bound, pipeline)
    for stage in found:
        outer = tuple(name for name in stage if not _is_within(name, (*members, *in_units)))
        outer = tuple(name for name in outer if not _is_within(name, (one for one in outer if one != name)))
        own = tuple(name for name in stage if name in members)
        held = tuple(name for name in own if any(_is_within(parameter, (name,)) for parameter in loose))
        for names in filter(None, (outer, held)):
            yield replace(root, fqns=names)


def _is_within(name: str, modules: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


@record
class _SequenceLayouts:
    """`on_shards` is the field of `pipeline.split`."""

    sent_length: int
    """Positions of a sequence that a rank holds between two stages."""
    on_shards: tuple[str, ...] = ()


def _sequence_layouts(bound: BoundPlan, pipeline: PipelineSpec) -> _SequenceLayouts:
    """The layouts of a plan whose stages all send one, which a rule demands."""
    mesh = bound.plan.mesh
    length = bound.plan.data.sequence_length // mesh.cp
    if mesh.tp == 1:
        return _SequenceLayouts(length)
    flow, members, found = layout_flow(bound), layers(bound.inventory), stages(bound, pipeline)

    def is_sharded(name: str) -> bool:
        return handed_on(bound, flow, name) == SEQUENCE

    outer = (name for name in (*found[0], *found[-1]) if name not in members)
    on_shards = tuple(filter(is_sharded, outer))
    if is_sharded(members[-1]):
        on_shards = (*on_shards, bound.inventory.blocks[0])
    sends_shards = any(map(is_sharded, sending_layers(bound, pipeline)))
    return _SequenceLayouts(length // mesh.tp if sends_shards else length, on_shards)
