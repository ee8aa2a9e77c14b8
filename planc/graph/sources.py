"""The source that an op reads, as the registry of sources has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planc.data_sources import BY_NAME
from planc.data_sources.hub_datasets import HubDataset
from planc.graph.graph import Graph
from planc.graph.ops import OpenData, OpenEvaluation, OpenSource

MIXTURE = "mixture"
AnySource = OpenSource | OpenData | OpenEvaluation
"""An op that reads a source."""


def training_data(graph: Graph) -> OpenData:
    """The op that opens the training data."""
    return next(op for op in graph.setup if isinstance(op, OpenData))


def mixture_labels(graph: Graph) -> tuple[str, ...]:
    """The labels of the sources of a mixture, in their order; empty for training data of one source."""
    return tuple(op.label for op in graph.setup if isinstance(op, OpenSource))


def sources_of(graph: Graph) -> Iterator[AnySource]:
    """The ops that read a source: of the training data, one or each of its mixture, then of evaluations."""
    for op in graph.setup:
        if isinstance(op, AnySource) and op.source != MIXTURE:
            yield op


def name_of(op: AnySource) -> str:
    """What an op reads, for messages."""
    match op:
        case OpenData():
            return "training"
        case OpenSource(label=label):
            return f"source {label}"
        case OpenEvaluation(label=label):
            return f"evaluation {label}"


def source_arguments(op: AnySource) -> dict[str, Any]:
    """The arguments of an op's source, by their names in the registry."""
    # Ops keep a repository in `patterns`.
    arguments = BY_NAME[op.source].arguments
    return {name: op.patterns[0] if name == "repository" else getattr(op, name) for name in arguments}


def reads_local_files(op: AnySource) -> bool:
    """Whether the op's patterns match files that must exist before a run starts."""
    return BY_NAME[op.source].reads_local_files and HubDataset.of(op.patterns) is None
