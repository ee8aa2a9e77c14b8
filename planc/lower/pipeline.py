"""The passes, in order, each with its reason."""

from __future__ import annotations

from collections.abc import Callable

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


def compile_graph(bound: BoundPlan) -> Graph:
    """The verified graph of a plan that passed its checks."""
    graph = _verified(lower(bound), "lower")
    for graph_pass in PASSES:
        graph = _verified(graph_pass.run(graph), graph_pass.name)
    return graph


def draft_graph(bound: BoundPlan) -> Graph:
    """The unverified graph of a plan that may break rules, for comparison only, never to run."""
    graph = lower(bound)
    for graph_pass in PASSES:
        graph = graph_pass.run(graph)
    return graph


def _verified(graph: Graph, after: str) -> Graph:
    violations = verify(graph)
    if violations:
        raise AssertionError(f"bug in planc: after {after}: {'; '.join(map(str, violations))}")
    return graph
