"""A case's records against one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.ranks import Record, Task, digest, train_rank
from tests.parity.reference import Training

TOLERANCE = 1e-5
"""Relative, in fp32: of every step's loss and gradient norm, of every parameter's first gradient."""


@dataclass(frozen=True, slots=True)
class Row:
    """How far a case is from one process. Errors are relative; `problems` says why it fails."""

    case: Case
    loss_error: float
    grad_norm_error: float
    gradient_error: float
    worst_parameter: str
    same_ids: bool
    same_weights: bool
    """Initial weights are equal bit for bit."""
    problems: tuple[str, ...]


def parity(case: Case, *, workspace: Path, reference: Training, fault: str | None = None) -> Row:
    """The case run on ranks of its own and measured."""
    graph = compile_case(case, workspace=workspace)
    with TemporaryDirectory(prefix="planc-parity-") as folder:
        task = Task(graph, workspace, Path(folder), fault)
        records = run_ranks(train_rank, case.world_size, task, init=False)
    return measure(case, records, reference)


def measure(case: Case, records: Sequence[Record], reference: Training) -> Row:
    """The row of a case whose ranks have run."""
    metrics = records[0].metrics
    worst, gradient_error = worst_gradient(records[0].gradients, reference.gradients)
    initial = {name: digest(tensor) for name, tensor in reference.initial.items()}
    row = Row(
        case,
        loss_error=worst_relative([step.loss for step in metrics], reference.losses),
        grad_norm_error=worst_relative([step.grad_norm for step in metrics], reference.grad_norms),
        gradient_error=gradient_error,
        worst_parameter=worst,
        same_ids=tuple(step.sample_ids for step in metrics) == reference.sample_ids,
        same_weights=all(record.initial == initial for record in records),
        problems=(),
    )
    return replace(row, problems=(*_faults(row), *disagreements(records)))


def worst_relative(actual: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference of two series; infinite if their lengths differ or a value is NaN."""
    if len(actual) != len(expected):
        return float("inf")
    errors = [abs(a - e) / abs(e) for a, e in zip(actual, expected, strict=True)]
    return max((error if error == error else float("inf") for error in errors), default=float("inf"))


def worst_gradient(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[str, float]:
    """The parameter whose gradient differs most, and |difference| / |expected| of 2-norms."""
    if actual.keys() != expected.keys():
        return f"only on one side: {sorted(actual.keys() ^ expected.keys())}", float("inf")
    errors = {name: relative_distance(actual[name], expected[name]) for name in expected}
    worst = max(errors, key=lambda name: errors[name])
    return worst, errors[worst]


def relative_distance(actual: Tensor, expected: Tensor) -> float:
    """|actual - expected| / |expected| of 2-norms, in float64; infinite where a value is not finite."""
    distance = (actual.double() - expected.double()).norm() / expected.double().norm()
    return distance.item() if distance.isfinite() else float("inf")


def disagreements(records: Sequence[Record]) -> tuple[str, ...]:
    """Blocks that should be replicas and are not, and metrics that differ between ranks."""
    seen: dict[str, str] = {}
    found = []
    for rank, record in enumerate(records):
        for key, value in record.blocks.items():
            if seen.setdefault(key, value) != value:
                found.append(f"rank {rank} has another {key}")
    told = {tuple((step.loss, step.grad_norm) for step in record.metrics) for record in records}
    if len(told) > 1:
        found.append("ranks report different losses or gradient norms")
    return tuple(found)


def _faults(row: Row) -> tuple[str, ...]:
    found = []
    if row.loss_error > TOLERANCE:
        found.append(f"loss differs by {row.loss_error:.1e}")
    if row.grad_norm_error > TOLERANCE:
        found.append(f"gradient norm differs by {row.grad_norm_error:.1e}")
    if row.gradient_error > TOLERANCE:
        found.append(f"gradient of {row.worst_parameter} differs by {row.gradient_error:.1e}")
    if not row.same_ids:
        found.append("sample ids differ")
    if not row.same_weights:
        found.append("initial weights differ")
    return tuple(found)
