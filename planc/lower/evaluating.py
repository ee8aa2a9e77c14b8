"""Graphs that only evaluate: on one rank whatever mesh they are for, and on data that no plan names."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from planc.data_sources import Source
from planc.data_sources.kinds import PairsSource
from planc.graph import ops
from planc.graph.graph import Graph
from planc.lower.passes.drop_trivial_dims import drop_trivial_dims
from planc.source import Span


def on_one_rank(graph: Graph) -> Graph:
    """The graph on one rank, which holds all of the model."""
    mesh = tuple((mesh_dim, 1) for mesh_dim, _ in graph.mesh)
    setup = (replace(op, sizes=mesh) if isinstance(op, ops.InitMesh) else op for op in graph.setup)
    return drop_trivial_dims(without_pipeline(replace(graph, mesh=mesh, setup=tuple(setup))))


def without_pipeline(graph: Graph) -> Graph:
    """The graph whose one rank of pp has all layers."""
    return replace(
        graph,
        setup=tuple(_without_messages(op) for op in graph.setup if not isinstance(op, ops.SplitPipeline)),
        step=tuple(_without_messages(op) for op in graph.step if not isinstance(op, ops.SumTies)),
    )


def _without_messages(op: Any) -> Any:
    only_staged = ops.ReceiveHidden | ops.SendHidden | ops.ComputeWeightGradients
    if not isinstance(op, ops.Accumulate | ops.Evaluate | ops.ComputeReference):
        return op
    body: Any = tuple(one for one in op.body if not isinstance(one, only_staged))
    return replace(op, body=body, orders=()) if isinstance(op, ops.Accumulate) else replace(op, body=body)


def evaluated_on(graph: Graph, source: Source, *, label: str, span: Span) -> Graph:
    """The graph whose one evaluation is on all of a source, which was written at `span`.

    Without pairs, a preference loss has no value: the evaluation is of cross entropy.
    """
    body = next(op.body for op in graph.step if isinstance(op, ops.Accumulate))
    loss = next(index for index, op in enumerate(body) if isinstance(op, ops.ComputeLoss))
    forward = tuple(op for op in body[: loss + 1] if isinstance(op, ops.EvaluationOp))
    reference = next((op for op in graph.setup if isinstance(op, ops.ComputeReference)), None)
    if reference is not None and isinstance(source, PairsSource):
        references: tuple[ops.ComputeReference, ...] = (replace(reference, label=label),)
        of_training: Any = ops.OpenEvaluation | ops.ComputeReference
    else:
        forward = tuple(map(_of_tokens, forward))
        references, of_training = (), ops.OpenEvaluation | ops.BuildPreferenceLoss | ops.ComputeReference
    over = next(op.over for op in graph.step if isinstance(op, ops.ReduceMetrics))
    opened = ops.OpenEvaluation(label=label, source=source, sequences=None, span=span)
    evaluation = ops.Evaluate(label=label, every_steps=1, over=over, body=forward, span=span)
    setup = (op for op in graph.setup if not isinstance(op, of_training))
    step = (op for op in graph.step if not isinstance(op, ops.Evaluate))
    return replace(graph, setup=(*setup, opened, *references), step=(*step, evaluation))


def _of_tokens(op: Any) -> Any:
    """The op, with the loss of each token in the place of that of pairs."""
    if not isinstance(op, ops.ComputePairLoss):
        return op
    names = (part.name for part in fields(ops.ComputeLoss) if part.name != "op")
    return ops.ComputeLoss(**{name: getattr(op, name) for name in names})
