"""A case's records against one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from planc.verify.compare import disagreements, relative_distance, worst_gradient, worst_relative
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.faults import FAULTS
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import Training, initial_digests

__all__ = [
    "TOLERANCE",
    "Row",
    "disagreements",
    "measure",
    "parity",
    "relative_distance",
    "worst_gradient",
    "worst_relative",
]

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
    """Initial weights and buffers are equal bit for bit, and of one dtype."""
    problems: tuple[str, ...]


def parity(case: Case, *, workspace: Path, reference: Training, fault: str | None = None) -> Row:
    """The case run on ranks of its own and measured."""
    case = replace(case, weights="pretrained")
    graph = compile_case(case, workspace=workspace)
    with TemporaryDirectory(prefix="planc-parity-") as folder:
        planted = fault and FAULTS[fault]
        task = Task(graph, workspace, Path(folder), planted, compares_collectives=planted is None)
        records = run_ranks(train_rank, case.world_size, task, init=False)
    return measure(case, records, reference, workspace=workspace)


def measure(case: Case, records: Sequence[Record], reference: Training, *, workspace: Path) -> Row:
    """The row of a case whose ranks have run."""
    metrics = records[0].metrics
    worst, gradient_error = worst_gradient(records[0].gradients, reference.gradients)
    initial = initial_digests(case.model, workspace=workspace)
    row = Row(
        case,
        loss_error=worst_relative([step.loss for step in metrics], reference.losses),
        grad_norm_error=worst_relative([step.grad_norm for step in metrics], reference.grad_norms),
        gradient_error=gradient_error,
        worst_parameter=worst,
        same_ids=tuple(step.sample_ids for step in metrics) == reference.sample_ids,
        same_weights=all({**record.initial, **record.buffers} == initial for record in records),
        problems=(),
    )
    return replace(row, problems=(*_faults(row), *disagreements(records)))


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
