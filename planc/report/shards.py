"""A parameter as a box, with the part of it that rank 0 holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from planc.estimate.layout import ParameterLayout
from planc.report.html import Html, element
from planc.vocab import MeshDim, PackedShard, Placement, Replicate, StridedShard, local_length

_LONGEST, _SHORTEST = 60.0, 8.0
_VISIBLE = 1.5
"""The least width of a shard in the picture: a shard of a thousandth is still there."""

Interval = tuple[float, float]
"""A start and a length, as fractions of a tensor dimension."""


def shard_picture(parameter: ParameterLayout, *, tp: int) -> Html:
    """Rows downwards, and columns across: the whole, the shard of tp rank 0, and rank 0's part of that."""
    if not parameter.shape:
        parameter = replace(parameter, shape=(1,), tp_shape=(1,), local_shape=(1,))
    rows, columns = _shown_dims(parameter)
    longest = max(parameter.shape[rows], 1 if columns is None else parameter.shape[columns])
    # Square roots keep a bias visible next to a matrix.
    height = _side(parameter.shape[rows] / longest)
    width = _SHORTEST if columns is None else _side(parameter.shape[columns] / longest)
    placement = dict(parameter.placements).get((MeshDim.TP,), Replicate())
    down = [*_intervals(parameter, placement, rows, tp=tp)]
    across = [(0.0, 1.0)] if columns is None else [*_intervals(parameter, placement, columns, tp=tp)]
    share = parameter.local_shape[0] / max(1, parameter.tp_shape[0]) if rows == 0 else 1.0
    own = [*_first(down, share)]
    boxes = [element("rect", width=width, height=height, class_="whole")]
    boxes += [_box(x, y, width, height, "of-tp") for y in down for x in across]
    boxes += [_box(x, y, width, height, "own") for y in own for x in across]
    return element(
        "svg",
        *boxes,
        viewBox=f"-1 -1 {_LONGEST + 2:g} {height + 2:g}",
        width=_LONGEST + 2,
        height=height + 2,
        class_="shard",
        aria_hidden="true",
    )


def _side(share: float) -> float:
    return max(_SHORTEST, _LONGEST * sqrt(share))


def _shown_dims(parameter: ParameterLayout) -> tuple[int, int | None]:
    """The tensor dimensions that are drawn: the first, and another one that tp shards, or else the second."""
    others = range(1, len(parameter.shape))
    sharded = [dim for dim in others if parameter.tp_shape[dim] != parameter.shape[dim]]
    return 0, sharded[0] if sharded else next(iter(others), None)


def _intervals(parameter: ParameterLayout, placement: Placement, dim: int, *, tp: int) -> Iterator[Interval]:
    """What tp rank 0 holds of a dimension: a part of each tensor that it packs."""
    length = parameter.shape[dim] or 1
    if (
        isinstance(placement, StridedShard | PackedShard)
        and placement.tensor_dim % len(parameter.shape) == dim
    ):
        start = 0
        for width in placement.widths_of(length):
            yield start / length, local_length(width, parts=tp, index=0) / length
            start += width
    else:
        yield 0.0, parameter.tp_shape[dim] / length


def _first(intervals: list[Interval], share: float) -> Iterator[Interval]:
    """The first `share` of what intervals cover."""
    left = share * sum(length for _, length in intervals)
    for start, length in intervals:
        if left > 0:
            yield start, min(length, left)
        left -= length


def _box(x: Interval, y: Interval, width: float, height: float, kind: str) -> Html:
    return element(
        "rect",
        x=x[0] * width,
        y=y[0] * height,
        width=max(_VISIBLE, x[1] * width),
        height=max(_VISIBLE, y[1] * height),
        class_=kind,
    )
