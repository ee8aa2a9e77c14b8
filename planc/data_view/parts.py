"""The data of a plan in parts: the training data or each of its sources, and the data of each evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from planc.graph.graph import Graph
from planc.graph.ops import OpenData, OpenEvaluation
from planc.graph.sources import AnySource, name_of, sources_of, training_data
from planc.record import record
from planc.runtime.data.ops import data_spec
from planc.runtime.data.prepared.wanted import Wanted, want
from planc.source import Span


@record
class Part:
    """The training data of a plan, a source of it, or the data of an evaluation.

    `span` is its place in the plan.
    """

    label: str
    wanted: Wanted
    vocab_size: int
    span: Span | None
    is_evaluation: bool = False

    @property
    def name(self) -> str:
        """Its name in the plan."""
        return self.label.rpartition(" ")[2]


def parts(graph: Graph, *, base: Path, runs_extensions: bool = False) -> Iterator[Part]:
    """The parts of a plan's data, of which only the tokenizer's files are read. Raises DataError.

    `runs_extensions` permits the plan's own code to run, for data that it makes.
    """
    return (found() for _, found in openings(graph, base=base, runs_extensions=runs_extensions))


def openings(
    graph: Graph, *, base: Path, runs_extensions: bool = False
) -> Iterator[tuple[Span | None, Callable[[], Part]]]:
    """Yield a function that makes each part, with its place in the plan: DataError if files are missing."""
    training = training_data(graph)
    for op in sources_of(graph):
        yield op.span, partial(_part, op, training, base=base, runs_extensions=runs_extensions)


def _part(op: AnySource, training: OpenData, *, base: Path, runs_extensions: bool) -> Part:
    wanted = want(data_spec(op, training=training), base=base, runs_extensions=runs_extensions)
    return Part(name_of(op), wanted, training.vocab_size, op.span, isinstance(op, OpenEvaluation))
