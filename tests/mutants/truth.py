"""What a plan does when it runs: its graph on real ranks against one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor

from planc.graph.graph import Graph
from planc.graph.ops import OpenTeacher
from planc.verify.losses import store_teacher
from tests.dist.pool import RankError, run_ranks
from tests.mutants.reference import NUM_STEPS, Recipe, train
from tests.parity.compare import disagreements, worst_relative
from tests.parity.ranks import Record, Task, digest, train_rank
from tests.parity.reference import Training

Status = Literal["equal", "differs", "crash", "hang"]

TOLERANCE = 1e-5
"""Relative, as in `tests.parity`."""
ROUNDED_LOSS, ROUNDED_GRADIENT = 3e-2, 0.3
"""Where a plan asks for 16-bit arithmetic: of losses and norms, and of any one parameter's gradient."""
NEGLIGIBLE = 1e-3
"""Share of the global norm that smaller gradients are measured against: some are zero but for noise."""
COLLECTIVE_TIMEOUT_SECONDS = 40
RUN_TIMEOUT_SECONDS = 180.0
_TIMED_OUT = ("Timed out", "timed out", "Timeout")


@dataclass(frozen=True, slots=True)
class Truth:
    """How a run ended; `detail` is the first thing that was wrong."""

    status: Status
    detail: str = ""


def ground_truth(graph: Graph, recipe: Recipe, *, rounds: bool) -> Truth:
    """The graph run for `NUM_STEPS` steps, checks or no checks. `rounds` says that 16-bit dtypes compute."""
    try:
        reference = reference_of(recipe)
    except Exception as error:  # whatever a model raises: then no plan can train it like that
        return Truth("crash", f"one process fails too: {type(error).__name__}: {_last_line(error)}")
    with TemporaryDirectory(prefix="planc-mutant-") as folder:
        task = Task(
            replace(_taught(graph, recipe.base, Path(folder) / "teacher"), save=()),
            recipe.base,
            Path(folder),
            stop_after=NUM_STEPS,
            collective_timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS,
            perturbs=True,
        )
        try:
            records = run_ranks(
                train_rank, graph.world_size, task, timeout_seconds=RUN_TIMEOUT_SECONDS, init=False
            )
        except TimeoutError as error:
            return Truth("hang", str(error))
        except RankError as error:
            is_hang = any(sign in str(error) for sign in _TIMED_OUT)
            return Truth("hang" if is_hang else "crash", _cause(error))
    found = _differences(records, recipe, reference, rounds=rounds)
    return Truth("differs", "; ".join(found[:3])) if found else Truth("equal")


def _taught(graph: Graph, base: Path, folder: Path) -> Graph:
    """The graph with its teacher's probabilities in a folder, if it has a teacher: made up, as the reference
    makes them up."""
    setup = tuple(replace(op, path=str(folder)) if isinstance(op, OpenTeacher) else op for op in graph.setup)
    graph = replace(graph, setup=setup)
    store_teacher(graph, base=base)
    return graph


@cache
def reference_of(recipe: Recipe) -> Training:
    """One reference for all mutants that train the same, in this process."""
    return train(recipe)


def _differences(records: list[Record], recipe: Recipe, reference: Training, *, rounds: bool) -> list[str]:
    """Everything in which the ranks are not one process, the plainest first."""
    scalars, tensors = (ROUNDED_LOSS, ROUNDED_GRADIENT) if rounds else (TOLERANCE, TOLERANCE)
    metrics = records[0].metrics
    found = []
    loss = worst_relative([step.loss for step in metrics], reference.losses)
    norm = worst_relative([step.grad_norm for step in metrics], reference.grad_norms)
    if loss > scalars:
        found.append(f"loss differs by {loss:.1e}")
    if norm > scalars:
        found.append(f"gradient norm differs by {norm:.1e}")
    worst, error = _worst_gradient(records[0].gradients, reference)
    if error > tensors:
        found.append(f"gradient of {worst} differs by {error:.1e}")
    moved = [bias for *_, bias in recipe.balance.layers if bias] if recipe.balance else []
    if other := [name for name in moved if not torch.equal(records[0].final[name], reference.final[name])]:
        found.append(f"{other[0]} moved otherwise")
    if tuple(step.sample_ids for step in metrics) != reference.sample_ids:
        found.append("sample ids differ")
    initial = {name: digest(tensor) for name, tensor in reference.initial.items() if name not in moved}
    if any(record.initial != initial for record in records):
        found.append("initial weights differ")
    return [*found, *disagreements(records)]


def _worst_gradient(actual: Mapping[str, Tensor], reference: Training) -> tuple[str, float]:
    """The parameter whose gradient differs most, and |difference| / |expected| of 2-norms."""
    expected = reference.gradients
    if actual.keys() != expected.keys():
        return f"only one side's {sorted(actual.keys() ^ expected.keys())[:3]}", float("inf")
    floor = NEGLIGIBLE * reference.grad_norms[0]
    errors = {
        name: ((actual[name].double() - expected[name].double()).norm().item())
        / max(expected[name].double().norm().item(), floor)
        for name in expected
    }
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else float("inf"))
    return worst, errors[worst] if errors[worst] == errors[worst] else float("inf")


def _cause(error: RankError) -> str:
    """The line of a rank's traceback that names the op, or the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "in op `" in line and "another rank" not in line]
    own = [line for line in named if "gloo" not in line and "Connection closed" not in line]
    return (own or named or lines[-1:])[0][:300]


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else ""
