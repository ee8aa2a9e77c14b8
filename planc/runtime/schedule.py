"""The learning rate over the steps, as a pure function: a resumed run needs no schedule state."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from planc.graph.ops import BuildSchedule


def learning_rate_factor(schedule: BuildSchedule, step: int) -> float:
    """The share of the peak learning rate at `step`, counted from 1.

    Step k of w warm-up steps has k / w. The step after the last has `min_factor`, and so have all that
    follow: no step of a run has a rate of zero. `wsd` decays as `linear` does, after a plateau.
    """
    if step <= schedule.warmup_steps:
        return step / schedule.warmup_steps
    after_warmup = schedule.num_steps - schedule.warmup_steps
    decay_steps = after_warmup if schedule.decay_steps is None else schedule.decay_steps
    decay_start = schedule.num_steps - decay_steps
    progress = min(1.0, max(0, step - 1 - decay_start) / max(1, decay_steps))
    span = 1.0 - schedule.min_factor
    match schedule.kind:
        case "cosine":
            return schedule.min_factor + span * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "linear" | "wsd":
            return schedule.min_factor + span * (1.0 - progress)
        case "constant":
            return 1.0
        case unknown:
            raise AssertionError(f"no schedule {unknown}")


def set_learning_rate(groups: Iterable[dict[str, Any]], factor: float) -> None:
    """Set every parameter group's learning rate to a share of its peak."""
    for group in groups:
        group["lr"] = group["peak_lr"] * factor
