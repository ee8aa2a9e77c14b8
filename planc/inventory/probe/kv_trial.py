"""Whether an attention works where several ranks compute one key/value head. Imports torch, for the probe.

The trial is that of `factor_trial`. Of the queries a rank has its own, of keys and values the one head that
these read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from planc.inventory.head_shares import KvProjection, SharedKv
from planc.inventory.probe.factor_trial import LIMITS, Call, Trial, integers, linear_order, smallest_sets
from planc.modeling.head_counts import Heads, widths_by_heads


def small_kv_heads(heads: Heads) -> int:
    """The key/value heads of a small model: its numbers of queries and of key/value heads must differ."""
    num_heads, num_kv_heads = heads
    if num_kv_heads == 1:
        return 1
    return 3 if num_heads // num_kv_heads == 2 else 2


def find_shared_kv(call: Call, heads: Heads, dtype: torch.dtype) -> SharedKv | None:
    """The projections to keys and values, and the smallest set of attributes with which the shares add up.

    None without them, or if several sets of one size do.
    """
    num_heads, num_kv_heads = heads
    order = linear_order(call)
    queries = num_heads // num_kv_heads
    if order is None or queries == 1:
        return None
    *first, last = order
    trial = Trial(call, tuple(first), last, LIMITS[dtype], heads)
    projections = kv_projections(dict(zip(first, trial.sizes(), strict=False)), heads)
    if not projections or not trial.is_possible():
        return None
    trial.replicated = {one.layer: one for one in projections}
    copies = next(size for size in range(2, queries + 1) if queries % size == 0)
    divisors = dict(_divisors(integers(call.attention), heads, copies=copies))
    share = num_kv_heads * copies
    found = list(
        smallest_sets(
            tuple(divisors), lambda names: trial.adds_up({name: divisors[name] for name in names}, share)
        )
    )
    return _by_kind(call, projections, found[0], heads) if len(found) == 1 else None


def kv_projections(features: Mapping[str, int], heads: Heads) -> tuple[KvProjection, ...]:
    """The layers that project to keys and values, by their output features: those that are narrower than the
    others, or a single one that holds the queries too."""
    if len(features) == 1:
        ((layer, size),) = features.items()
        widths = widths_by_heads(size, heads)
        return (KvProjection(layer, widths[1:], widths[0]),) if widths else ()
    narrow = [layer for layer, size in features.items() if size < max(features.values())]
    if any(features[layer] % heads[1] for layer in narrow):
        return ()
    return tuple(KvProjection(layer, (features[layer],)) for layer in narrow)


def _divisors(
    attributes: Iterator[tuple[str, int]], heads: Heads, *, copies: int
) -> Iterator[tuple[str, int]]:
    """Yield the divisor of each attribute on a rank, if it counts heads or their features."""
    share = heads[1] * copies
    for path, value in attributes:
        match _kind(value, heads):
            case "group_counts" if value % copies == 0:
                yield path, copies
            case "kv_counts":
                yield path, heads[1]
            case "counts" if value % share == 0:
                yield path, share


def _kind(value: int, heads: Heads) -> str:
    """Name what an integer counts: queries of a key/value head, such heads, or heads or their features."""
    num_heads, num_kv_heads = heads
    if value == num_heads // num_kv_heads:
        return "group_counts"
    return "kv_counts" if value == num_kv_heads else "counts"


def _by_kind(
    call: Call, projections: tuple[KvProjection, ...], names: Sequence[str], heads: Heads
) -> SharedKv:
    values = dict(integers(call.attention))
    kinds = {name: _kind(values[name], heads) for name in names}
    of_kind = {
        kind: tuple(name for name in names if kinds[name] == kind)
        for kind in ("counts", "group_counts", "kv_counts")
    }
    return SharedKv(projections, **of_kind)
