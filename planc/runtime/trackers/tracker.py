"""The interface of trackers, and the values that they receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from planc.runtime.observer import Evaluation, StepMetrics


class Tracker(Protocol):
    """Receives numbers by step. Its errors are counted, and never end a run."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """The numbers of one step."""

    def finish(self, *, is_done: bool) -> None:
        """The run is over; `is_done` is true if it ended well."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The facts that a tracker starts with. `first_step` is 1 unless a run is resumed."""

    run_folder: Path
    plan_name: str
    plan_hash: str
    mesh: Mapping[str, int]
    first_step: int


Open = Callable[[Opening], Tracker]


def values_of(metrics: StepMetrics) -> dict[str, float]:
    """The numbers of a step under the names that dashboards group by: `train/loss`, `time/forward`."""
    given = {
        # The mean over 0 labels is undefined.
        "train/loss": metrics.loss if metrics.labels else None,
        "train/grad_norm": metrics.grad_norm,
        "train/learning_rate": metrics.learning_rate,
        "train/tokens": metrics.tokens,
        "train/labels": metrics.labels,
        "train/epoch": metrics.epoch,
        "throughput/tokens_per_second": metrics.tokens_per_second,
        "throughput/tokens_per_second_per_device": metrics.tokens_per_second_per_device,
        "throughput/tflops_per_second_per_device": metrics.tflops_per_second_per_device,
        "throughput/mfu": metrics.mfu,
        f"memory/{metrics.memory_kind}_bytes": metrics.memory_bytes,
        "memory/reserved_bytes": metrics.memory_reserved_bytes,
        "compile/graphs": metrics.compiled_graphs,
        "time/step": metrics.seconds,
        **{f"time/{phase}": seconds for phase, seconds in metrics.phase_seconds.items()},
    }
    given |= {f"custom/{name}": value for name, value in metrics.custom.items()}
    for source in metrics.sources:
        of_source = {
            "loss": source.loss,
            "labels": source.labels,
            "tokens": source.tokens,
            "epoch": source.epoch,
        }
        given |= {f"source/{source.label}/{name}": value for name, value in of_source.items()}
    values = {name: float(value) for name, value in given.items() if value is not None}
    for evaluation in metrics.evaluations:
        values |= values_of_evaluation(evaluation)
    return values


def values_of_evaluation(evaluation: Evaluation) -> dict[str, float]:
    """The means of one evaluation, under the same kind of name."""
    means = {name: value for name, value in evaluation.figures.items() if name != "labels"}
    return {f"eval/{evaluation.label}/{name}": float(value) for name, value in means.items()}
