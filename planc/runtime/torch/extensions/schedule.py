"""A schedule of the plan's own: tried for being a function of the step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from planc.graph.ops import BuildSchedule, LoadSchedule
from planc.runtime.extensions import arguments_of, load_extension
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.extensions.trials import RefusedError, tried
from planc.runtime.torch.run import Run

_MAX_TRIED = 2000
"""Steps of a trial, spread over the run."""


@dataclass(frozen=True, slots=True)
class OwnSchedule:
    """The share of the peak learning rate at a step, from 1."""

    factor: Callable[[int], float]


@agreed
def load_schedule(run: Run, op: LoadSchedule) -> OwnSchedule:
    """Every rank tries the schedule by itself, and all must have the same factors."""
    function = load_extension(op.extension, base=run.paths.base, is_allowed=run.runs_extensions)
    (build,) = (one for one in run.graph.setup if isinstance(one, BuildSchedule))
    trial = partial(try_schedule, function, arguments_of(op.extension), num_steps=build.num_steps)
    own, factors = tried(run, op.extension, trial)
    run.reads.add("setting", f"factors of the schedule `{op.extension.entry}`", repr(factors))
    return own


def try_schedule(
    function: Callable[..., Any], arguments: Mapping[str, Any], *, num_steps: int
) -> tuple[tuple[OwnSchedule, tuple[float, ...]], tuple[str, ...]]:
    """The schedule with its factors at the steps that were tried, and what was shown of it."""
    offered = {"num_steps": num_steps} if "num_steps" in inspect.signature(function).parameters else {}
    called = partial(function, **offered, **arguments)
    steps = [*range(1, num_steps, max(1, num_steps // _MAX_TRIED)), num_steps]
    values = [called(step) for step in steps]
    for step, value in zip(steps, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RefusedError(f"returns {type(value).__name__} at step {step}", "return a number")
        if not math.isfinite(value) or value < 0:
            raise RefusedError(f"returns {value} at step {step}", "return a number of 0 at least")
    if [called(step) for step in reversed(steps)] != values[::-1]:
        raise RefusedError(
            "gives another factor for the same step",
            "compute it from the step and the arguments alone: a resumed run asks for later steps only",
        )
    # A rate is also set when the last step ends. No update takes it, and the function need not have one.
    own = OwnSchedule(lambda step: float(called(min(step, num_steps))))
    span = f"{min(values):.3g} to {max(values):.3g} times the peak learning rate"
    return (own, tuple(map(float, values))), ("depends on the step alone", span)
