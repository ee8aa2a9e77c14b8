"""The bytes that a rank sends in a step, by mesh dim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod

from planc.estimate import muon
from planc.estimate.experts import dispatch_collectives
from planc.estimate.rank_work import RankWork
from planc.estimate.result import Collective, Kind
from planc.estimate.tensor_parallel import tensor_parallel_collectives
from planc.estimate.units import Unit, num_with_gradients
from planc.graph import ops
from planc.graph.groups import group_name
from planc.graph.pipeline import Pipeline, StageUnit, pipeline_of
from planc.graph.sources import mixture_labels, reads_classes, reads_pairs
from planc.inventory.adapters import is_of_adapter
from planc.inventory.schema import Attention
from planc.vocab import DType, GroupDim, MeshDim

_SCALAR_BYTES = 8
"""Counts, losses and norms are sent as int64 or float64."""


def collectives(work: RankWork, *, units: tuple[Unit, ...]) -> tuple[Collective, ...]:
    """Every collective of a step, with equal ones combined; `at_intervals` has those of some steps only."""
    counts: Counter[tuple[tuple[GroupDim, ...], int, Kind, str, int, bool]] = Counter()
    for collective in (
        *tensor_parallel_collectives(work),
        *dispatch_collectives(work),
        *_fully_sharded(work, units),
        *_replicated(work),
        *_tied(work),
        *_context(work),
        *_answers(work),
        *_routes(work),
        *_biases(work),
        *_scalars(work),
        *muon.exchanged(work),
    ):
        if collective.group_size > 1 and collective.count > 0 and collective.input_bytes > 0:
            over = group_name(work.graph, collective.over)
            counts[
                over,
                collective.group_size,
                collective.kind,
                collective.cause,
                collective.input_bytes,
                collective.is_routed,
            ] += collective.count
    return tuple(
        Collective(over, size, kind, cause, count, input_bytes, is_routed)
        for (over, size, kind, cause, input_bytes, is_routed), count in counts.items()
    )


Called = Counter[tuple[str, tuple[GroupDim, ...], int | None]]
"""Collectives by (PyTorch's name, dims of the group, bytes of the input)."""


def as_called(collectives: Iterable[Collective], *, knows_routing: bool) -> Called:
    """The number that a rank calls. Unless it knows the routing, bytes that follow from it are None.

    A ring sends with all-to-alls to one partner each way; a pipeline's messages are sends.
    """
    called: Called = Counter()
    for one in collectives:
        is_ring = one.kind is Kind.SEND and one.over != (MeshDim.PP,)
        kind = Kind.ALL_TO_ALL if is_ring else one.kind
        is_known = knows_routing or not one.is_routed
        called[kind.value, one.over, one.input_bytes if is_known else None] += one.count
    return called


def _fully_sharded(work: RankWork, units: tuple[Unit, ...]) -> Iterator[Collective]:
    """FSDP2: gathered in every forward, and in every backward where forward resharded, or once a step.
    Gradients are reduced once a step, or in every backward.

    The sums stay in the reduce dtype over the replicas too (torch/distributed/fsdp/_fully_shard/
    _fsdp_collectives.py). Parameters are padded to make every rank's shard as large as rank 0's.
    """
    pipeline = pipeline_of(work.graph)
    for unit in units:
        size = _group_size(work, unit.shard_over)
        gathered = unit.num_local * unit.compute_dtype.size_bytes
        times = unit.num_gathers(work.times)
        if pipeline is not None and unit.has_backward:
            times = sum(len(pipeline.stays(one)) for one in _in_pipeline(pipeline, unit))
        yield Collective(unit.shard_over, size, Kind.ALL_GATHER, "fsdp.shard", times, gathered)
        replicas = _group_size(work, unit.replicate_over)
        for times, num_reduced in _reductions(work, unit, pipeline):
            part = num_reduced * unit.reduce_dtype.size_bytes
            yield Collective(unit.shard_over, size, Kind.REDUCE_SCATTER, "fsdp.shard", times, size * part)
            yield Collective(unit.replicate_over, replicas, Kind.ALL_REDUCE, "fsdp.shard", times, part)


def _in_pipeline(pipeline: Pipeline, unit: Unit) -> Iterator[StageUnit]:
    return (one for one in pipeline.units if not {*one.modules}.isdisjoint(unit.modules))


def _reductions(work: RankWork, unit: Unit, pipeline: Pipeline | None) -> Iterator[tuple[int, int]]:
    """(how often in a step, elements of this rank's shard) of a unit's reductions.

    Where gradients of weights are computed twice in a row, the second time they are all that there is to
    reduce: the backward of its micro-batch came before the first.
    """
    late = 0
    if pipeline is not None and unit.reduces_each:
        late = sum(map(pipeline.num_weights_in_a_row, (one.stage for one in _in_pipeline(pipeline, unit))))
    found = ((unit.num_reductions(work.times) - late, unit.num_reduced), (late, unit.num_deferred))
    return ((times, num_reduced) for times, num_reduced in found if times and num_reduced)


def _replicated(work: RankWork) -> Iterator[Collective]:
    """Gradients of whole replicas, or of equal shards over tp."""
    for op in _sums_of_replicas(work):
        for mesh_dim in op.over:
            size = work.graph.size(mesh_dim)
            for num_bytes in _message_bytes(work, op):
                yield Collective((mesh_dim,), size, Kind.ALL_REDUCE, op.name, 1, num_bytes)


def _tied(work: RankWork) -> Iterator[Collective]:
    """Gradients of the weights that both ends of a pipeline have, over these two ranks."""
    for op in work.graph.step:
        if isinstance(op, ops.SumTies):
            for layout in filter(lambda layout: layout.has_gradient, work.tied_layouts):
                yield Collective(op.over, 2, Kind.ALL_REDUCE, op.name, 1, layout.local_bytes)


def last_sums(work: RankWork) -> tuple[Collective, ...]:
    """The sums over replicas of the last gradients, and those of tied weights: they start when backward
    ends."""
    of_replicas = (
        Collective((mesh_dim,), work.graph.size(mesh_dim), Kind.ALL_REDUCE, op.name, 1, sizes[-1])
        for op in _sums_of_replicas(work)
        if (sizes := tuple(_message_bytes(work, op)))
        for mesh_dim in op.over
        if work.graph.size(mesh_dim) > 1
    )
    return (*of_replicas, *_tied(work))


def replicated_message(work: RankWork) -> int:
    """Bytes of the largest copy in which replicas without FSDP sum gradients; one alone is not copied."""
    copies = (names for op in _sums_of_replicas(work) for names in _messages(work, op) if len(names) > 1)
    return max((_num_bytes(work, names) for names in copies), default=0)


def _sums_of_replicas(work: RankWork) -> Iterator[ops.AllReduceGradients]:
    return (op for op in work.graph.step if isinstance(op, ops.AllReduceGradients))


def _message_bytes(work: RankWork, op: ops.AllReduceGradients) -> Iterator[int]:
    """This rank's bytes of each message, in the order of sending."""
    return (_num_bytes(work, names) for names in _messages(work, op))


def _messages(work: RankWork, op: ops.AllReduceGradients) -> tuple[tuple[str, ...], ...]:
    trained = {name: one for name, one in work.layouts.items() if not one.is_frozen}
    return op.messages((name, one.dtype, one.total_bytes) for name, one in trained.items())


def _num_bytes(work: RankWork, parameters: Iterable[str]) -> int:
    layouts = (work.layouts[name] for name in parameters)
    return sum(one.local_bytes for one in layouts if one.has_gradient)


def _group_size(work: RankWork, dims: Iterable[GroupDim]) -> int:
    return prod(map(work.graph.size, dims))


def _context(work: RankWork) -> Iterator[Collective]:
    """Keys and values over cp, for every attention module and micro step (planc/runtime/.../attention/)."""
    if not work.attention.over:
        return
    for attention in work.inventory.attentions:
        is_again = attention.fqn in work.checkpointed or work.checkpoint_around(attention.fqn) is not None
        with_gradients = attention.calls * num_with_gradients(work, attention.fqn)
        num_calls = attention.calls * len(work.module(attention.fqn).calls)
        num_forwards = num_calls + is_again * with_gradients
        num_backwards = with_gradients * _passes_attention(work, attention.fqn)
        yield from _attention(work, attention, num_forwards=num_forwards, num_backwards=num_backwards)


def _passes_attention(work: RankWork, fqn: str) -> bool:
    """Whether backward passes an attention itself, and not only the projection of its result."""
    inside = [module for module in work.inventory.modules if module.fqn.startswith(f"{fqn}.")]
    names = {module.fqn for module in inside if not is_of_adapter(module.fqn)}
    read = {name for module in inside for name in module.sources}
    last = [
        module.fqn for module in inside if module.fqn in names - read and not names.isdisjoint(module.sources)
    ]
    attention = work.module(fqn)
    own = any(work.trains(attention, parameter.name) for parameter in attention.parameters)
    return work.is_passed(fqn) and (own or not last or not work.flow.inputs.isdisjoint(last))


def _answers(work: RankWork) -> Iterator[Collective]:
    """The log-probability of each answer, summed over ranks with parts of it."""
    loop = next(op for op in work.graph.step if isinstance(op, ops.Accumulate))
    losses = (op for op in loop.body if isinstance(op, ops.ComputePairLoss) and work.inventory.vocab_size)
    for mesh_dim in (mesh_dim for op in losses for mesh_dim in op.over):
        size, num_bytes = work.graph.size(mesh_dim), _SCALAR_BYTES * work.num_samples
        cause = "loss" if work.loss_chunks == 1 else "forward"
        yield Collective((mesh_dim,), size, Kind.ALL_REDUCE, cause, work.times, num_bytes)


def _attention(
    work: RankWork, attention: Attention, *, num_forwards: int, num_backwards: int
) -> Iterator[Collective]:
    num_heads, num_kv_heads = work.heads(attention)
    size, element = work.cp, work.compute_dtype.size_bytes
    head = work.num_tokens * attention.head_dim
    key_value = 2 * num_kv_heads * head * element

    def over_cp(kind: Kind, count: int, input_bytes: int) -> Collective:
        return Collective(work.attention.over, size, kind, "attention", count * work.times, input_bytes)

    match work.attention.kind:
        case "ring":
            steps = work.ring_steps(attention.window)
            yield over_cp(Kind.SEND, (steps - 1) * (num_forwards + num_backwards), key_value)
            # Gradients are sent in the accumulation dtype, and one hop further, back to their owner.
            accumulated = 8 if work.compute_dtype is DType.FLOAT64 else 4
            yield over_cp(Kind.SEND, steps * num_backwards, 2 * num_kv_heads * head * accumulated)
        case "allgather":
            yield over_cp(Kind.ALL_GATHER, num_forwards, key_value)
            yield over_cp(Kind.REDUCE_SCATTER, num_backwards, size * key_value)
        case "ulysses":
            # Key-value heads are repeated until every rank of cp gets one.
            sent_kv_heads = max(num_kv_heads, size)
            # Queries and keys have the same width, values and results another one in some models.
            for width in (attention.head_dim, attention.value_dim or attention.head_dim):
                for sent_heads in (num_heads, sent_kv_heads):
                    num_bytes = work.num_tokens * sent_heads * width * element
                    yield over_cp(Kind.ALL_TO_ALL, num_forwards + num_backwards, num_bytes)


def _routes(work: RankWork) -> Iterator[Collective]:
    """The tokens of each expert and of all, for every set and router of a stage, in one message."""
    balance = next((op for op in work.graph.setup if isinstance(op, ops.BalanceExperts)), None)
    loop = next(op for op in work.graph.step if isinstance(op, ops.Accumulate))
    sums = next((op for op in loop.body if isinstance(op, ops.SumRoutes)), None)
    if balance is None or sums is None or balance.loss is None:
        return
    micro_batch = next(op.micro_batch for op in work.graph.setup if isinstance(op, ops.OpenData))
    num_sets = max(1, micro_batch // balance.loss.num_sequences)
    stages = next((op.stages for op in work.graph.setup if isinstance(op, ops.SplitPipeline)), ((),))
    for stage in stages:
        own = [
            num_experts + 1
            for _, experts, num_experts, _ in balance.layers
            if work.inventory.get(experts) is not None
            and (not stage or any(experts.startswith(f"{name}.") for name in stage))
        ]
        for mesh_dim in sums.over:
            num_bytes = _SCALAR_BYTES * num_sets * sum(own)
            size = work.graph.size(mesh_dim)
            yield Collective((mesh_dim,), size, Kind.ALL_REDUCE, sums.name, work.times, num_bytes)


def _biases(work: RankWork) -> Iterator[Collective]:
    """The tokens of each expert whose bias a rank moves, in one message."""
    balance = next((op for op in work.graph.setup if isinstance(op, ops.BalanceExperts)), None)
    moves = next((op for op in work.graph.step if isinstance(op, ops.MoveBiases)), None)
    if balance is None or moves is None:
        return
    number = sum(
        num_experts
        for _, experts, num_experts, bias in balance.layers
        if bias and work.inventory.get(experts)
    )
    for mesh_dim in moves.over if number else ():
        size = work.graph.size(mesh_dim)
        yield Collective((mesh_dim,), size, Kind.ALL_REDUCE, moves.name, 1, _SCALAR_BYTES * number)


def _scalars(work: RankWork) -> Iterator[Collective]:
    """Token count, loss with the number of stopped ranks, and gradient norm: eight bytes each.

    With the loss of a step, two more for each source of a mixture, its own loss and labels, or for pairs, and
    one for the accuracy of a classifier.
    """
    num_sources = len(mixture_labels(work.graph)) + reads_pairs(work.graph)
    num_summed = 2 + 2 * num_sources + reads_classes(work.graph)
    for op in work.graph.step:
        match op:
            case ops.NextBatch():
                yield from (_scalar(work, (mesh_dim,), op.name) for mesh_dim in op.count_over)
            case ops.ReduceMetrics():
                yield from (
                    _scalar(work, (mesh_dim,), op.name, num_values=num_summed) for mesh_dim in op.over
                )
                yield from (_scalar(work, (mesh_dim,), op.name) for mesh_dim in op.agree_over)
            case ops.GuardStep():
                yield from (_scalar(work, (mesh_dim,), op.name) for mesh_dim in op.over)
            case ops.ClipGradients():
                stages = ((MeshDim.PP,),) if MeshDim.PP in op.over else ()
                yield from (_scalar(work, over, op.name) for over in (*_norms(work), *stages))


def _norms(work: RankWork) -> Iterator[tuple[GroupDim, ...]]:
    """The groups over which equally sharded gradients sum their squares, innermost first.

    What then lacks the same sums takes part in them.
    """
    copies = {fqn for tie in work.ties for fqn in tie[1:]}
    counted = (layout for fqn, layout in work.with_gradients.items() if fqn not in copies)
    divided = dict.fromkeys(work.dividing(layout) for layout in counted)
    lacking = dict.fromkeys(groups[:end] for groups in divided for end in range(len(groups), 0, -1))
    yield from (groups[-1] for groups in lacking)


def _scalar(work: RankWork, over: tuple[GroupDim, ...], cause: str, *, num_values: int = 1) -> Collective:
    num_bytes = num_values * _SCALAR_BYTES
    return Collective(over, _group_size(work, over), Kind.ALL_REDUCE, cause, 1, num_bytes)
