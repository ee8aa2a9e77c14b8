"""The ops that read a source."""

from __future__ import annotations

from collections.abc import Iterator

from planc.data_sources.kinds import PairsSource
from planc.graph import ops
from planc.graph.graph import Graph

AnySource = ops.OpenSource | ops.OpenData | ops.OpenEvaluation
"""An op that reads a source."""


def training_data(graph: Graph) -> ops.OpenData:
    """The op that opens the training data."""
    return next(op for op in graph.setup if isinstance(op, ops.OpenData))


def reads_pairs(graph: Graph) -> bool:
    """Whether each two sequences of the training data are a pair."""
    return isinstance(training_data(graph).source, PairsSource)


def reads_classes(graph: Graph) -> bool:
    """Whether the labels of the training data are classes, of sequences or of words, or the positives of a
    group: then there is an accuracy."""
    return isinstance(training_data(graph), ops.OpenLabeledData | ops.OpenMatchedData)


def class_names(graph: Graph) -> tuple[str, ...]:
    """The names of the classes of texts in the order of their numbers; empty if the plan has none."""
    data = training_data(graph)
    return data.names if isinstance(data, ops.OpenLabeledData) else ()


def mixture_labels(graph: Graph) -> tuple[str, ...]:
    """The labels of the sources of a mixture, in their order; empty for training data of one source."""
    return tuple(op.label for op in graph.setup if isinstance(op, ops.OpenSource))


def sources_of(graph: Graph) -> Iterator[AnySource]:
    """The ops that read a source: of the training data, one or each of its mixture, then of evaluations."""
    for op in graph.setup:
        if isinstance(op, AnySource) and not isinstance(op.source, ops.Mixture):
            yield op


def name_of(op: AnySource) -> str:
    """Name the data that an op reads, for messages."""
    match op:
        case ops.OpenData():
            return "training"
        case ops.OpenSource(label=label):
            return f"source {label}"
        case ops.OpenEvaluation(label=label):
            return f"evaluation {label}"
