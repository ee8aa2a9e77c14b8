"""A graph's pipeline, for a model of few layers on few ranks, and a graph without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from planc.graph.graph import Graph
from planc.graph.ops import (
    Accumulate,
    ComputeWeightGradients,
    OpenData,
    ReceiveHidden,
    SendHidden,
    SplitPipeline,
    SumTies,
)
from planc.graph.pipeline import pipeline_of
from planc.pipelining.simulate import equal_step
from planc.plan.spec import PipelineSpec
from planc.plan.stages import orders
from planc.verify.recipe import MAX_MICRO_BATCH, MAX_MICRO_STEPS, MAX_RANKS, SEQUENCE_LENGTH
from planc.vocab import DType, MeshDim


def num_small_stages(graph: Graph) -> int:
    """Stages on few ranks of pp, as many on each as in the graph; 1 without a pipeline."""
    found = pipeline_of(graph)
    if found is None:
        return 1
    return found.num_stages // found.num_ranks * min(found.num_ranks, MAX_RANKS)


def in_small_stages(
    graph: Graph,
    pipeline: PipelineSpec | None,
    layers: tuple[str, ...],
    *,
    sizes: Mapping[MeshDim, int],
    hidden_size: int,
    dtype: DType,
) -> Graph:
    """The graph with even stages of these layers, and the order of few micro-batches."""
    data = next(op for op in graph.setup if isinstance(op, OpenData))
    number = num_small_stages(graph)
    times = min(next(op.times for op in graph.step if isinstance(op, Accumulate)), MAX_MICRO_STEPS)
    found = () if pipeline is None else orders(pipeline, num_ranks=sizes[MeshDim.PP], num_micro_batches=times)

    def small(op: Any) -> Any:
        match op:
            case SplitPipeline():
                length = min(SEQUENCE_LENGTH, data.sequence_length) // sizes[MeshDim.CP]
                if op.shape[1] < data.sequence_length // graph.size(MeshDim.CP):
                    length //= sizes[MeshDim.TP]
                shape = min(op.shape[0], MAX_MICRO_BATCH), length, hidden_size
                stages = _even_stages(op, layers, number=number)
                max_sends = equal_step(found, num_stages=number).max_sends
                return replace(op, stages=stages, shape=shape, dtype=dtype, max_sends=max_sends)
            case Accumulate() if op.orders:
                return replace(op, orders=found)
            case _:
                return op

    return replace(graph, setup=tuple(map(small, graph.setup)), step=tuple(map(small, graph.step)))


def _even_stages(op: SplitPipeline, layers: tuple[str, ...], *, number: int) -> tuple[tuple[str, ...], ...]:
    """Stages of these layers; what precedes and follows all layers stays where it is."""
    before, after = (
        tuple(name for name in stage if not name.startswith(f"{op.blocks}."))
        for stage in (op.stages[0], op.stages[-1])
    )
    ends = [len(layers) * stage // number for stage in range(number + 1)]
    first, *inner, last = (layers[start:end] for start, end in pairwise(ends))
    return ((*before, *first), *inner, (*last, *after))


def without_pipeline(graph: Graph) -> Graph:
    """The graph whose one rank of pp has all layers."""
    return replace(
        graph,
        setup=tuple(op for op in graph.setup if not isinstance(op, SplitPipeline)),
        step=tuple(_without_messages(op) for op in graph.step if not isinstance(op, SumTies)),
    )


def _without_messages(op: Any) -> Any:
    if not isinstance(op, Accumulate):
        return op
    only_staged = ReceiveHidden | SendHidden | ComputeWeightGradients
    body = tuple(one for one in op.body if not isinstance(one, only_staged))
    return replace(op, body=body, orders=())
