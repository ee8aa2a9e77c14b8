"""Metrics: a number of each logged step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from planc.extend.kind import Kind, mark

METRIC = Kind(
    "metric",
    "train.metrics",
    passes=("step",),
    choices=(("reduce", ("mean", "sum", "max")),),
    methods=("__call__",),
)
M = TypeVar("M", bound=Callable[..., Any])


def metric(name: str, *, reduce: Literal["mean", "sum", "max"] = "mean") -> Callable[[M], M]:
    """Register a metric: `train { metrics = [NAME(argument = value)] }`.

    A metric is a function of a `step` that returns a number, or a class whose `__call__(self, step)` does, to
    remember earlier steps. All other parameters are keyword-only, and get their values in the plan. It is
    called on all ranks in each logged step, once the step has its gradients: `step.gradient(name)` and
    `step.parameter(name)` are whole tensors, as on one device, to read. `reduce` makes one number of those of
    all ranks. metrics.jsonl has it under `custom`, trackers as `custom/NAME`, and the console in its line.
    What it remembers is not saved.

    Before the first step, planc computes it twice for made-up steps: it must depend on nothing but these.
    """
    return lambda target: mark(METRIC, target, name)
