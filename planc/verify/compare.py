"""Differences between ranks and one process, and among ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from planc.verify.ranks import Record


def worst_relative(actual: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference of two series; infinite if their lengths differ or a value is NaN."""
    if len(actual) != len(expected):
        return float("inf")
    errors = [abs(a - e) / abs(e) for a, e in zip(actual, expected, strict=True)]
    return max((error if error == error else float("inf") for error in errors), default=float("inf"))


def worst_gradient(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, floor: float = 0.0
) -> tuple[str, float]:
    """The tensor that differs most, and |difference| / |expected| of 2-norms, |expected| at least `floor`."""
    if actual.keys() != expected.keys():
        return f"only on one side: {', '.join(sorted(actual.keys() ^ expected.keys())[:3])}", float("inf")
    errors = {name: relative_distance(actual[name], expected[name], floor=floor) for name in expected}
    worst = max(errors, key=lambda name: errors[name])
    return worst, errors[worst]


def relative_distance(actual: Tensor, expected: Tensor, *, floor: float = 0.0) -> float:
    """|actual - expected| / |expected| of 2-norms, in float64; infinite if a value is not finite."""
    if actual.shape != expected.shape:
        return float("inf")
    distance = (actual.double() - expected.double()).norm()
    if distance == 0.0:
        return 0.0
    share = distance / expected.double().norm().clamp(min=floor)
    return share.item() if share.isfinite() else float("inf")


def disagreements(records: Sequence[Record]) -> tuple[str, ...]:
    """Blocks that should be replicas but differ, and metrics that differ between ranks."""
    seen: dict[str, str] = {}
    disagreements = []
    for rank, record in enumerate(records):
        for key, value in record.blocks.items():
            if seen.setdefault(key, value) != value:
                disagreements.append(f"rank {rank} has a different {key}")
    told = {tuple((step.loss, step.grad_norm) for step in record.metrics) for record in records}
    if len(told) > 1:
        disagreements.append("ranks report different losses or gradient norms")
    return tuple(disagreements)
