"""The parts of a model that the pp ranks of a pipeline have, and what micro batches in flight keep.

A part is a model by itself: the modules of a rank's stages, with those around them that own no parameters.
All formulas read it as they read a whole one. The last stage alone has logits, and so a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from planc.estimate.activations import activations, input_bytes, input_key, last_input_bytes, offloaded_bytes
from planc.estimate.kernels import window_mask_bytes
from planc.estimate.loss import loss
from planc.estimate.rank_work import RankWork, rank_work
from planc.estimate.result import Collective, Kind
from planc.graph.graph import Graph
from planc.graph.pipeline import Pipeline, pipeline_of
from planc.inventory.schema import Inventory, Module
from planc.pipelining.orders import Direction, Order, has_weights, rank_of
from planc.record import record
from planc.vocab import parent_of


def deferred_bytes(work: RankWork) -> int:
    """Bytes that linear layers keep between a micro batch's backward and the gradients of their weights.

    A layer keeps its input, once for layers that read the same one, and the gradient of its output. 0 if
    backward computes all gradients.
    """
    return sum(freed for _, freed in products(work))


def products(work: RankWork) -> Iterator[tuple[int, int]]:
    """The bytes of each layer's gradient and of what is freed with it, in the order of the computation."""
    layers = [module for module in work.inventory.modules if module.fqn in work.deferred]
    first = {key: module for module in reversed(layers) for key in [input_key(work, module)]}
    for module in reversed(layers):
        element = work.compute_dtype.size_bytes
        freed = output_bytes(work, module)
        freed += input_bytes(work, module) if first[input_key(work, module)] is module else 0
        yield element * prod(work.tp_shape(module) or (0,)), freed


def output_bytes(work: RankWork, module: Module) -> int:
    """Bytes of a linear layer's output on a rank, or of its gradient."""
    rows, *_ = work.tp_shape(module) or (0,)
    return work.num_tokens * rows * work.compute_dtype.size_bytes


SENDS = "pipeline.send"
"""The cause of messages between stages."""


@record
class Part:
    """One pp rank's stages, and its work and memory in a step."""

    rank: int
    stages: tuple[int, ...]
    work: RankWork
    """The work of all of its stages."""
    in_flight: int
    """The most micro batches whose forward is done, and whose backward or weights are not, of all of its
    stages."""
    kept_bytes: int
    """The most that they keep for their backwards, together with messages under way, without the loss of one
    of them."""
    offloaded_bytes: int
    """The most of their inputs that wait in the host's memory."""
    spared_bytes: int
    """The bytes by which that is less from the first backward on, when there are gradients to hold."""
    deferred_bytes: int
    """The most that they keep when gradients of weights are computed apart; 0 if they are not."""
    alternates: bool
    """Whether forwards, which gather parameters, follow the first backward, which frees them."""
    sends: Collective
    """Hidden states to the stages after its own, and gradients to those before."""


def parts(graph: Graph, inventory: Inventory, *, expert_load: int = 1) -> tuple[Part, ...]:
    """The parts of all pp ranks; none without a pipeline."""
    pipeline = pipeline_of(graph)
    if pipeline is None:
        return ()
    works = stage_works(graph, inventory, expert_load=expert_load)
    in_flight = pipeline.equal_step().rank_in_flight
    return tuple(
        _part(graph, inventory, pipeline, works, rank, number) for rank, number in enumerate(in_flight)
    )


def stage_works(graph: Graph, inventory: Inventory, *, expert_load: int = 1) -> tuple[RankWork, ...]:
    """The work of each stage by itself; none without a pipeline."""
    pipeline = pipeline_of(graph)
    if pipeline is None:
        return ()
    return tuple(
        rank_work(graph, _restricted(inventory, pipeline, {stage}), expert_load=expert_load)
        for stage in range(pipeline.num_stages)
    )


def message(pipeline: Pipeline, count: int) -> Collective:
    """Micro batches' hidden states, or their gradients, between two stages."""
    split = pipeline.split
    num_bytes = prod(split.shape) * split.dtype.size_bytes
    return Collective(split.over, pipeline.num_ranks, Kind.SEND, SENDS, count, num_bytes)


def _part(
    graph: Graph,
    inventory: Inventory,
    pipeline: Pipeline,
    works: tuple[RankWork, ...],
    rank: int,
    in_flight: int,
) -> Part:
    last = pipeline.num_stages - 1
    own = tuple(stage for stage in range(last + 1) if rank_of(stage, num_ranks=pipeline.num_ranks) == rank)
    of_loss = {stage: loss(works[stage]).kept for stage in own}
    kept = {
        stage: activations(works[stage]).kept
        + of_loss[stage]
        + _received_bytes(pipeline, works[stage], stage)
        for stage in own
    }
    sizes = {stage: (kept[stage], deferred_bytes(works[stage])) for stage in own}
    held = _held(pipeline, rank, sizes)
    num_neighbors = sum((stage > 0) + (stage < last) for stage in own)
    work = works[rank]
    if own != (rank,):
        whole = _restricted(inventory, pipeline, set(own))
        work = rank_work(graph, whole, expert_load=work.expert_load)
    return Part(
        rank=rank,
        stages=own,
        work=work,
        in_flight=in_flight,
        kept_bytes=held.most - max(of_loss.values()) + window_mask_bytes(work) + last_input_bytes(work),
        offloaded_bytes=_most_waiting(
            pipeline.orders[rank], {stage: offloaded_bytes(works[stage]) for stage in own}
        ),
        spared_bytes=held.most - held.with_gradients,
        deferred_bytes=held.at_weights,
        alternates=_alternates(pipeline.orders[rank]),
        sends=message(pipeline, num_neighbors * pipeline.num_micro_batches),
    )


def _alternates(order: Order) -> bool:
    directions = [action.direction for action in order]
    return Direction.FORWARD in directions[directions.index(Direction.BACKWARD) :]


def _received_bytes(pipeline: Pipeline, work: RankWork, stage: int) -> int:
    """Hidden states that a stage holds only because it owes their gradient.

    A norm saves them in float32, a copy if they are narrower; a checkpointed layer saves them as they are,
    or in the host's memory.
    """
    region = work.region(pipeline.split.stages[stage][0])
    is_saved = (work.compute_dtype.size_bytes >= 4 or region is not None) and region not in work.offloaded
    return 0 if stage == 0 or is_saved else message(pipeline, 1).input_bytes


@record
class _Held:
    """The most bytes of a rank's micro batches in flight and messages under way."""

    most: int
    """Before a backward."""
    with_gradients: int
    """The same, from the first backward on."""
    at_weights: int
    """Before the gradients of weights, if they are apart."""


def _held(pipeline: Pipeline, rank: int, sizes: Mapping[int, tuple[int, int]]) -> _Held:
    """`sizes` are, by stage, what a micro batch keeps until its backward, and until its weights if they are
    apart."""
    are_apart = has_weights(pipeline.orders)
    end = {Direction.FORWARD: pipeline.num_stages - 1, Direction.BACKWARD: 0}
    a_message, sent = message(pipeline, 1).input_bytes, dict.fromkeys(end, 0)
    num_held: dict[Direction, list[int]] = {direction: [] for direction in Direction}
    now = 0
    for action in pipeline.orders[rank]:
        kept, left = sizes[action.stage]
        direction = action.direction
        num_held[direction].append(now)
        match direction:
            case Direction.FORWARD:
                now += kept
            case Direction.BACKWARD:
                now -= kept - (left if are_apart else 0)
            case Direction.WEIGHTS:
                now -= left
        sends = direction in end and action.stage != end[direction]
        if sends and sent[direction] < pipeline.split.max_sends:
            sent[direction] += 1
            now += a_message
    backwards = num_held[Direction.BACKWARD]
    return _Held(max(backwards), max(backwards[1:], default=0), max(num_held[Direction.WEIGHTS], default=0))


def _most_waiting(order: Order, sizes: Mapping[int, int]) -> int:
    """The most that a rank's micro batches in flight have in the host's memory, by their stages' sizes."""
    most = now = 0
    for action in order:
        if action.direction is Direction.FORWARD:
            now += sizes[action.stage]
        elif action.direction is Direction.BACKWARD:
            now -= sizes[action.stage]
        most = max(most, now)
    return most


def _restricted(inventory: Inventory, pipeline: Pipeline, own: set[int]) -> Inventory:
    """The modules that ranks with these stages have."""
    others = tuple(
        f"{name}." for stage, names in enumerate(pipeline.split.stages) if stage not in own for name in names
    )
    names = {module.fqn for module in inventory.modules if not f"{module.fqn}.".startswith(others)}
    # The code around layers runs where they begin and where they end.
    has_end = bool(own & {0, pipeline.num_stages - 1})
    stems = () if has_end else tuple(parent_of(block) for block in inventory.blocks)
    ties = (tuple(fqn for fqn in tie if parent_of(fqn) in names) for tie in inventory.ties)
    return replace(
        inventory,
        modules=tuple(_among(module, names, stems) for module in inventory.modules if module.fqn in names),
        attentions=tuple(one for one in inventory.attentions if one.fqn in names),
        ties=tuple(tie for tie in ties if len(tie) > 1),
        vocab_size=inventory.vocab_size if pipeline.split.head in names else 0,
    )


def _among(module: Module, names: set[str], idle: tuple[str, ...]) -> Module:
    """The module, reading only from others of its part; without code of its own if that is idle."""
    if module.fqn in idle:
        module = replace(module, own_code=None, eager_code=None)
    sources = tuple(name for name in module.sources if name in names)
    return module if sources == module.sources else replace(module, sources=sources)
