"""Puts FSDP units into the order that `fully_shard` needs."""

from __future__ import annotations

from dataclasses import replace

from planc.graph.graph import Graph
from planc.graph.ops import FullyShard


def order_units(graph: Graph) -> Graph:
    """The graph with inner modules sharded before the modules that hold them, the root last.

    `fully_shard` gives a module every parameter that no inner unit has taken yet, so a parent that came
    first would take its children's.
    """
    shards = [op for op in graph.setup if isinstance(op, FullyShard)]
    if not shards:
        return graph
    first = graph.setup.index(shards[0])
    ordered = sorted(shards, key=_depth, reverse=True)
    others = [op for op in graph.setup if not isinstance(op, FullyShard)]
    return replace(graph, setup=(*others[:first], *ordered, *others[first:]))


def _depth(op: FullyShard) -> tuple[int, int]:
    """Parts in the shallowest module's name, then in the deepest's; the root, with no name, comes last.

    A unit of several modules waits for what its shallowest holds, and precedes what holds its deepest.
    """
    depths = [(name.count(".") + 1 if name else 0) for group in op.groups for name in group]
    return min(depths), max(depths)
