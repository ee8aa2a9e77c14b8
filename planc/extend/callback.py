"""Callbacks: methods that read a run at stated points, and may end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from planc.extend.kind import Kind, mark
from planc.record import record

POINTS = ("on_start", "on_gradients", "on_step", "on_evaluation", "on_log", "on_save", "on_end")
"""The methods of a callback, in the order of a step."""
CALLBACK = Kind(
    "callback", "train.callbacks", passes=(), choices=(("ranks", ("zero", "all")),), methods=POINTS
)
C = TypeVar("C", bound=Callable[..., Any])


@record
class Stop:
    """A callback's request to end the run after the step that is done, as if it were the last.

    All ranks end after the same step, and save what a run saves at its end. It is enough that one asks.
    """

    reason: str


def callback(name: str, *, ranks: Literal["zero", "all"] = "zero") -> Callable[[C], C]:
    """Register a callback: `train { callbacks = [NAME(argument = value)] }`.

    A callback is a class with some of the methods `on_start(self, start)`, `on_gradients(self, step)`,
    `on_step(self, step)`, `on_evaluation(self, step)`, `on_log(self, metrics)`, `on_save(self, checkpoint)`
    and `on_end(self, end)`. Its `__init__` takes keyword-only parameters, which get their values in the plan.
    A `step` has `step`, `loss`, `grad_norm`, `learning_rate`, `labels`, `evaluations` and `parameter_names`;
    `step.parameter(name)` and, in `on_gradients`, `step.gradient(name)` are whole tensors, as on one device.
    It reads: writing to one is refused. A method may return `Stop(reason)` of `planc.extend`: then all ranks
    end after this step, save, and status.json has the reason. What it keeps in `self` is not saved.

    It is called on rank 0, or on each with `ranks="all"`, which tensors need: ranks gather them together.
    It calls no collective itself.

    Before the first step, planc calls all methods but `on_log`, `on_save` and `on_end` with made-up values,
    whose `is_trial` is true, on two instances: both must ask to stop at the same steps.
    """
    return lambda target: mark(CALLBACK, target, name)
