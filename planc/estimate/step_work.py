"""The work of one rank in a step, as a time needs it: matmuls, attention, memory traffic, collectives.

No device is part of it. A forward's and a backward's work are apart, since FSDP's messages overlap with each;
recomputation belongs to backward. Everything is for a whole step, all of its micro steps together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

from planc.estimate import muon
from planc.estimate.activations import offloaded_bytes
from planc.estimate.attention_calls import window_rows_of
from planc.estimate.collectives import collectives, last_sums
from planc.estimate.experts import rows_taken
from planc.estimate.flops import computes_logits_twice
from planc.estimate.parts import message, parts, stage_works
from planc.estimate.rank_work import RankWork, rank_work
from planc.estimate.result import Collective, Estimate
from planc.estimate.selective import kept_results, results_read
from planc.estimate.states import moved_bytes
from planc.estimate.traffic import Traffic, traffic
from planc.estimate.units import units
from planc.graph.graph import Graph
from planc.graph.groups import Axis, axes
from planc.graph.pipeline import pipeline_of
from planc.inventory.schema import Attention, Inventory, Module
from planc.inventory.schema import Kind as ModuleKind
from planc.pipelining.orders import Order
from planc.record import record
from planc.vocab import DType

_SMALL = 0.02
"""A share of the model's weights that changes no time by more."""


@record
class Matmul:
    """Equal matmuls [rows, inner] x [inner, outer]: how many in forwards, and how many in backwards.

    A backward has two for each in a forward, of the gradients of both factors that have one, and one more
    where it computes forward again.
    """

    rows: int
    inner: int
    outer: int
    num_forward: int
    num_backward: int
    num_deferred: int = 0
    """The number of calls in backwards that compute gradients of weights apart from the backward."""

    @property
    def flops(self) -> int:
        """FLOPs of one product."""
        return 2 * self.rows * self.inner * self.outer

    @property
    def num_elements(self) -> int:
        """Elements of both factors and the product."""
        return self.rows * (self.inner + self.outer) + self.inner * self.outer


@record
class AttentionWork:
    """FLOPs of attention's scores and of the products with values.

    `least` are those of the pairs of tokens that see each other, twice in backward as in forward. The others
    are what the kernels execute: a fused backward computes the scores again, so it executes 2.5 times its
    forward; kernels with a mask, and unfused attention, compute all pairs.
    """

    least: float
    least_forward: float
    """The part of `least` that is in forwards."""
    executed: tuple[float, float]
    """The work in forwards, and in backwards."""


@record
class StepWork:
    """One rank's work in a step."""

    dtype: DType
    """The dtype of matmuls and attention."""
    matmuls: tuple[Matmul, ...]
    attention: AttentionWork
    traffic: Traffic
    collectives: tuple[Collective, ...]
    """All others."""
    behind: tuple[Collective, ...]
    """Collectives after backward, which overlap with nothing: sums of gradients over replicas, and an
    optimizer's gathers."""
    gathered_in_forward: float
    """The share of FSDP's gathered bytes that forward gathers."""
    mesh: tuple[Axis, ...]
    optimizer_elements: int
    optimizer_bytes: int
    """Bytes that the optimizer moves for each element."""
    optimizer_matmuls: tuple[Matmul, ...]
    """The optimizer's products of matrices, in its own dtype."""
    optimizer_dtype: DType
    offloaded_bytes: int
    """Inputs of modules that forwards copy to the host, and backwards back."""
    kernels: int
    """Kernels that the host launches."""
    tokens: int
    """The tokens of all ranks."""
    world_size: int
    not_modeled: tuple[str, ...]
    """Work that takes time and is not in here."""
    pipeline: PipelineWork | None = None
    """The work of all pp ranks; the rest is then that of the rank with the most."""

    @property
    def defers(self) -> bool:
        """Whether gradients of weights are computed apart from the backward."""
        return any(one.num_deferred for one in self.matmuls)

    @property
    def matmul_flops(self) -> int:
        return sum(one.flops * (one.num_forward + one.num_backward) for one in self.matmuls)


@record
class PipelineWork:
    """The work of a pipeline's stages and ranks in a step."""

    orders: tuple[Order, ...]
    num_micro_batches: int
    stages: tuple[StepWork, ...]
    """Forwards and backwards of each stage, without what precedes and follows all of them."""
    ranks: tuple[StepWork, ...]
    """All of each pp rank's work."""
    message: Collective
    """One micro batch's, from a stage to the next."""


def step_work(graph: Graph, inventory: Inventory, estimated: Estimate) -> StepWork:
    """The work of rank 0; `estimated` is the estimate of the same graph."""
    load = estimated.expert_load
    whole = rank_work(graph, inventory, expert_load=load)
    pipeline = pipeline_of(graph)
    if pipeline is None:
        return _step_work(whole, estimated.collectives, num_elements=_num_trained(whole))
    ranks = tuple(
        _step_work(part.work, one.collectives, num_elements=_num_trained(part.work))
        for part, one in zip(parts(graph, inventory, expert_load=load), estimated.ranks, strict=True)
    )
    work = PipelineWork(
        orders=pipeline.orders,
        num_micro_batches=pipeline.num_micro_batches,
        stages=tuple(_of_stage(work) for work in stage_works(graph, inventory, expert_load=load)),
        ranks=ranks,
        message=message(pipeline, 1),
    )
    most = max(ranks, key=lambda one: one.matmul_flops)
    return replace(most, not_modeled=tuple(_not_modeled(whole)), pipeline=work)


def _of_stage(work: RankWork) -> StepWork:
    """The forwards and backwards of one stage."""
    around = {op.name for op in work.graph.step}
    sent = (one for one in collectives(work, units=units(work)) if one.cause not in around)
    return _step_work(work, tuple(sent), num_elements=0)


def _step_work(work: RankWork, sent: tuple[Collective, ...], *, num_elements: int) -> StepWork:
    """The work of a rank whose optimizer steps this many elements."""
    behind = (*last_sums(work), *muon.exchanged(work)) if num_elements else last_sums(work)
    iterations = muon.products(work) if num_elements else {}
    moved = traffic(work)
    return StepWork(
        dtype=work.compute_dtype,
        matmuls=_matmuls(work),
        attention=_attentions(work),
        traffic=moved,
        collectives=tuple(_without(sent, behind)),
        behind=behind,
        gathered_in_forward=_gathered_in_forward(work),
        mesh=axes(work.graph),
        optimizer_elements=0 if work.offloads else num_elements,
        optimizer_bytes=moved_bytes(work),
        optimizer_matmuls=tuple(Matmul(*shape, number, 0) for shape, number in iterations.items()),
        optimizer_dtype=muon.dtype_of(work) or work.compute_dtype,
        offloaded_bytes=work.times * offloaded_bytes(work),
        kernels=moved.kernels,
        tokens=work.tokens_per_step,
        world_size=work.graph.world_size,
        not_modeled=tuple(_not_modeled(work)),
    )


def _num_trained(work: RankWork) -> int:
    """The elements of this rank's shards that the optimizer steps."""
    return sum(prod(layout.local_shape) for layout in work.layouts.values() if not layout.is_frozen)


def _without(collectives: Iterable[Collective], behind: Sequence[Collective]) -> Iterator[Collective]:
    """Without one each of those behind."""
    for one in collectives:
        count = one.count - sum(replace(other, count=one.count) == one for other in behind)
        if count:
            yield replace(one, count=count)


def _not_modeled(work: RankWork) -> Iterator[str]:
    if work.offloads:
        yield "CPU offload"
    known = other = 0
    for module in work.inventory.modules:
        num_elements = sum(one.num_elements for one in module.parameters if len(one.shape) > 1)
        if module.kind is ModuleKind.OTHER and module.routing is None:
            other += num_elements
        else:
            known += num_elements
    # A router is small; convolutions and recurrences are not.
    if other > _SMALL * known:
        yield "modules of an unknown kind"


def _gathered_in_forward(work: RankWork) -> float:
    gathered = units(work)
    once = sum(unit.num_local for unit in gathered)
    again = sum(unit.num_local for unit in gathered if unit.reshard_after_forward and unit.has_backward)
    return once / (once + again) if once else 1.0


def _matmuls(work: RankWork) -> tuple[Matmul, ...]:
    kept, read = kept_results(work), results_read(work)
    counts: Counter[tuple[int, int, int, int, bool]] = Counter()
    for module in work.inventory.modules:
        # Recomputation stops at the last tensor that backward reads (torch/utils/checkpoint.py, early stop).
        region = work.region(module.fqn)
        is_again = region is not None and module.fqn not in kept and (module.fqn, region) in read
        is_deferred, has_input = module.fqn in work.deferred, module.fqn in work.flow.inputs
        for name, rows, inner, outer in _products(work, module):
            num_backward = is_again + has_input + work.trains(module, name)
            counts[rows, inner, outer, num_backward, is_deferred] += work.times
            if module is work.inventory.head and computes_logits_twice(work):
                counts[rows, inner, outer, 0, False] += work.times
    return tuple(
        Matmul(rows, inner, outer, number, num_backward * number, is_deferred * number)
        for (rows, inner, outer, num_backward, is_deferred), number in counts.items()
    )


def _products(work: RankWork, module: Module) -> Iterator[tuple[str, int, int, int]]:
    """(parameter, rows, inner, outer) of a module's matmuls in one forward."""
    if module.is_linear:
        shape = work.tp_shape(module)
        if shape is not None and len(shape) > 1:
            yield "weight", work.num_tokens, prod(shape[1:]), shape[0]
    elif module.kind is ModuleKind.OTHER and module.routing is not None:
        rows = rows_taken(work, module)
        for parameter in module.parameters:
            layout = work.layout(f"{module.fqn}.{parameter.name}")
            if layout is not None and len(layout.tp_shape) == 3:
                yield parameter.name, rows, layout.tp_shape[1], layout.tp_shape[2]


def _attentions(work: RankWork) -> AttentionWork:
    kept = kept_results(work)
    least = least_forward = forward = backward = 0.0
    for attention in work.inventory.attentions:
        seen, computed = _pairs(work, attention)
        width = attention.head_dim + (attention.value_dim or attention.head_dim)
        heads, _ = work.heads(attention)
        each = 2.0 * width * heads * work.times
        is_again = work.region(attention.fqn) is not None and attention.fqn not in kept
        is_passed = work.is_passed(attention.fqn)
        least += each * seen * (1 + 2 * is_passed + is_again)
        least_forward += each * seen
        forward += each * computed
        factor = 2.0 if work.attention.kind == "eager" else 2.5
        backward += each * computed * (factor * is_passed + is_again)
    return AttentionWork(least, least_forward, (forward, backward))


def _pairs(work: RankWork, attention: Attention) -> tuple[float, float]:
    """Pairs of query and key of one head on a rank in a micro step: those that see each other, and those
    that its kernel computes."""
    length = work.sequence_length
    whole = work.num_samples * length * length / work.cp
    window = min(length, attention.window or length)
    seen = work.num_samples * (window * length - window * (window - 1) / 2) / work.cp
    if work.attention.isolates:
        # Documents can be of one token each.
        seen = work.num_samples * length / work.cp
    if work.attention.kind == "eager":
        return whole, whole
    if attention.window is not None and attention.window < length:
        rows = window_rows_of(work, attention.window, attention)
        return seen, whole if rows is None else whole / length * (rows + attention.window - 1)
    if work.attention.kind == "ulysses":
        return seen, whole / 2
    # Without a balance, the last rank of cp has the most pairs, and the others wait for it.
    is_uneven = work.cp > 1 and work.attention.balance == "none"
    return seen, whole / 2 * ((2 * work.cp - 1) / work.cp if is_uneven else 1)
