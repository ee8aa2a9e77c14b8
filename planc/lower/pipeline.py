"""The passes, in order, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from planc.graph.graph import Graph
from planc.graph.verify import verify
from planc.lower.lower import lower
from planc.lower.passes.drop_trivial_dims import drop_trivial_dims
from planc.plan.bind import BoundPlan
from planc.record import record


@record
class Pass:
    """A step from graph to graph; `reason` explains its position."""

    name: str
    run: Callable[[Graph], Graph]
    reason: str


PASSES: tuple[Pass, ...] = (
    Pass(
        "drop-trivial-dims",
        drop_trivial_dims,
        "first, so later passes and the plan's hash see only real communication",
    ),
)


@record
class Lowered:
    """The graph after a pass."""

    after: str
    reason: str
    graph: Graph


def trace_passes(bound: BoundPlan) -> Iterator[Lowered]:
    """The unverified graph of a plan after lowering, and after each pass."""
    graph = lower(bound)
    yield Lowered("lower", "every op that the plan requests", graph)
    for graph_pass in PASSES:
        graph = graph_pass.run(graph)
        yield Lowered(graph_pass.name, graph_pass.reason, graph)


def verified(passes: Iterable[Lowered]) -> Graph:
    """The last graph of passes that are all as a graph must be; AssertionError if not."""
    *_, last = map(_verified, passes)
    return last.graph


def draft_graph(bound: BoundPlan) -> Graph:
    """The unverified graph of a plan that may break rules, for comparison only, never to run."""
    *_, last = trace_passes(bound)
    return last.graph


def _verified(lowered: Lowered) -> Lowered:
    violations = verify(lowered.graph)
    if violations:
        raise AssertionError(f"bug in planc: after {lowered.after}: {'; '.join(map(str, violations))}")
    return lowered
