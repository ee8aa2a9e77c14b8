"""The step from which two plans see other samples, as far as it follows from the plans alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import zip_longest

from planc.diff.difference import Action, Change, Group
from planc.diff.lines import having
from planc.diff.side import Side
from planc.graph.consequence import Consequence
from planc.graph.graph import Graph
from planc.graph.ops import Mixture, OpenData, OpenSource
from planc.graph.sources import training_data

SAMPLE_ORDER = "sample order"
SOURCES = {"data.source", "data.weights"}
_UNLESS = {
    "data.tokenizer": "the tokenizer's content is the same",
    "document end": "both are the same token",
    "document start": "both are the same token",
    "data.too_long": "no document is longer than a sequence",
}
"""The changes that may change nothing, which only the data and its tokenizer decide."""
_FROM_1 = "other samples from step 1 on"


def data_state() -> set[str]:
    """The lines that the data fingerprint in a checkpoint covers: a change in any means different data."""
    return {line.label for line in having(Consequence.SAMPLES)}


def compare_sample_order(old: Side, new: Side, *, facts: Sequence[Change]) -> Iterator[Change]:
    """The step from which other samples are seen, or how far the same order goes."""
    changed = {fact.name for fact in facts if fact.action is not Action.KEEP}
    if changed & data_state() or "sequences/step" in changed:
        note = _other_order(old.graph, new.graph, changed)
        if note:
            yield Change(Group.BATCH, Action.CHANGE, SAMPLE_ORDER, note=note)
            return
    if note := _other_end(old.graph, new.graph):
        yield Change(Group.BATCH, Action.KEEP, SAMPLE_ORDER, note=note)


def _other_order(old: Graph, new: Graph, changed: set[str]) -> str:
    """State where the orders begin to differ; empty if they do not before one of them ends."""
    of_data = changed & data_state()
    if of_data - SOURCES - set(_UNLESS):
        return _FROM_1
    if not of_data - SOURCES:
        note = _other_sources(old, new)
        if "sequences/step" not in changed:
            return note
        return _FROM_1 if note else "the same order, but each step from step 1 on takes another part of it"
    if of_data & SOURCES and _other_sources(old, new):
        return _FROM_1
    conditions = dict.fromkeys(_UNLESS[name] for name in _UNLESS if name in of_data)
    return f"{_FROM_1}, unless {' and '.join(conditions)}"


def _other_end(old: Graph, new: Graph) -> str:
    """State how far the same order goes if one plan ends earlier; empty if both end at the same step."""
    if old.num_steps == new.num_steps:
        epochs = {training_data(graph).epochs for graph in (old, new)}
        is_known = old.num_steps or len(epochs) == 1
        return "" if is_known else "the same; `planc data prepare` counts the steps"
    if not old.num_steps or not new.num_steps:
        return "the same as far as both plans go; `planc data prepare` counts the steps of epochs"
    ends = "old" if old.num_steps < new.num_steps else "new"
    return f"the same up to step {min(old.num_steps, new.num_steps):_}, where the {ends} plan ends"


def _other_sources(old: Graph, new: Graph) -> str:
    """State where orders of other sources or weights begin to differ; empty if they do not."""
    sources, others = (_sources(graph) for graph in (old, new))
    before, after = ([op.source for op in ops] for ops in (sources, others))
    weights, other_weights = (
        [op.weight for op in ops if isinstance(op, OpenSource)] for ops in (sources, others)
    )
    is_weighted, others_are = any(weights), any(other_weights)
    if is_weighted != others_are:
        return _FROM_1
    if is_weighted:
        own = [one == another for one, another in zip_longest(before, after)]
        position = _first_difference(old, new, own)
        step = 0 if position is None else position // training_data(old).global_batch + 1
        return f"other samples from step {step:_} on" if step else ""
    shared = min(len(before), len(after))
    if before[:shared] != after[:shared]:
        return _FROM_1
    # Joined sequences are sorted by random keys, of which more sequences draw more.
    more = [_label(op) for op in (*sources[shared:], *others[shared:])]
    return (
        f"other samples from the first step on that takes a sequence of {' or '.join(more)}" if more else ""
    )


def _first_difference(old: Graph, new: Graph, own: Sequence[bool]) -> int | None:
    """The first position at which two weighted mixtures take another sequence; None up to the earlier end.

    `own` states which sources have the same place in both. Such a source has one order of its own, so the
    orders are the same as long as the same source has its turn.
    """
    # Imported here, as only a changed mixture waits for numpy.
    from planc.runtime.data.shares import Shares, first_difference

    old_shares, new_shares = (
        Shares.of([Fraction(op.weight) for op in graph.setup if isinstance(op, OpenSource)])
        for graph in (old, new)
    )
    ends = [graph.num_steps * training_data(graph).global_batch for graph in (old, new) if graph.num_steps]
    seed = training_data(old).shuffle_seed
    return first_difference(old_shares, new_shares, own=own, seed=seed, end=min(ends, default=None))


def _sources(graph: Graph) -> list[OpenSource] | list[OpenData]:
    """The sources of a mixture; a single source is like a mixture of one without weights."""
    data = training_data(graph)
    if isinstance(data.source, Mixture):
        return [op for op in graph.setup if isinstance(op, OpenSource)]
    return [data]


def has_same_sources(old: Graph, new: Graph) -> bool:
    """Whether two mixtures differ in the labels of their sources at most, which no checkpoint has."""
    one, another = ([op for op in graph.setup if isinstance(op, OpenSource)] for graph in (old, new))
    return bool(one) and [(op.source, op.weight) for op in one] == [(op.source, op.weight) for op in another]


def _label(op: OpenSource | OpenData) -> str:
    return f'"{op.label}"' if isinstance(op, OpenSource) else "the single source"
