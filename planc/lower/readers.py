"""The plan's own metrics and callbacks as ops, at the points of a step that they read."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import AgreeToStop, LoadReaders, ReadEvaluations, ReadGradients, ReadStep
from planc.lower.stated import stated
from planc.plan.spec import Plan
from planc.source import Span
from planc.vocab import MeshDim

_ALL = tuple(MeshDim)


def load_readers(plan: Plan) -> Iterator[LoadReaders]:
    if plan.train.metrics or plan.train.callbacks:
        yield LoadReaders(span=_span(plan), **stated(LoadReaders, plan))


def read_gradients(plan: Plan) -> Iterator[ReadGradients]:
    if plan.train.metrics or _is_read(plan, "on_gradients"):
        yield ReadGradients(over=_ALL, span=_span(plan))


def read_step(plan: Plan) -> Iterator[ReadStep]:
    if _is_read(plan, "on_step"):
        yield ReadStep(over=_ALL, span=_span(plan))


def read_evaluations(plan: Plan) -> Iterator[ReadEvaluations]:
    if _is_read(plan, "on_evaluation") and plan.data.eval:
        yield ReadEvaluations(over=_ALL, span=_span(plan))


def agree_to_stop(plan: Plan) -> Iterator[AgreeToStop]:
    """One op, if a callback is called before the end of the run: its request is for all ranks."""
    if any(set(own.points) - {"on_start", "on_end"} for own in plan.train.callbacks):
        yield AgreeToStop(over=_ALL, span=_span(plan))


def _is_read(plan: Plan, point: str) -> bool:
    return any(point in own.points for own in plan.train.callbacks)


def _span(plan: Plan) -> Span:
    return plan.span("train.callbacks" if plan.train.callbacks else "train.metrics")
