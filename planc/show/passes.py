"""The passes that make a plan's graph, in order: why each is there, and what it removes or changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from planc.graph.graph import Graph
from planc.lower import trace_passes
from planc.plan.bind import BoundPlan
from planc.record import record
from planc.tables import render_table


@record
class Effect:
    """The effect of a pass on a plan: `removed` and `changed` are names of ops, in the graph's order."""

    name: str
    reason: str
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def effects(bound: BoundPlan) -> Iterator[Effect]:
    """Yield the effect of each pass; the first is the lowering itself, which starts from no graph."""
    first, *rest = trace_passes(bound)
    yield Effect(first.after, first.reason)
    for before, one in pairwise((first, *rest)):
        removed, changed = _removed(before.graph, one.graph), _changed(before.graph, one.graph)
        yield Effect(one.after, one.reason, removed, changed)


def _removed(before: Graph, after: Graph) -> tuple[str, ...]:
    lost = Counter(op.name for op in before.ops()) - Counter(op.name for op in after.ops())
    return tuple(dict.fromkeys(op.name for op in before.ops() if op.name in lost))


def _changed(before: Graph, after: Graph) -> tuple[str, ...]:
    kept = {*before.ops()}
    return tuple(dict.fromkeys(op.name for op in after.ops() if op not in kept))


def passes_text(bound: BoundPlan) -> str:
    """Each pass with its reason, and what it does to the plan."""
    first, *rest = effects(bound)
    lines = [f"{first.name}\n", render_table([("makes", first.reason)], indent="  ")]
    for one in rest:
        removed, changed = (", ".join(names) or "no op" for names in (one.removed, one.changed))
        rows = [("why here", one.reason), ("removes", removed), ("changes", changed)]
        lines += [f"{one.name}\n", render_table(rows, indent="  ")]
    return "".join(lines)


def passes_data(bound: BoundPlan) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "name": effect.name,
            "reason": effect.reason,
            "removed": [*effect.removed],
            "changed": [*effect.changed],
        }
        for effect in effects(bound)
    ]
