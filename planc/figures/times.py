"""Figures of times: what a run measures, a step's bound, which nothing can beat, and its expectation."""

from __future__ import annotations

from planc.estimate.bound import StepBound
from planc.estimate.expectation import StepExpectation
from planc.estimate.step_work import StepWork
from planc.figures.figure import Figure, Unit, num_bytes


def tokens_per_second(value: float) -> Figure:
    """Positions per second of all ranks, including padding and masked ones: tokens_per_step over seconds."""
    return Figure("tokens_per_second", value, Unit.TOKENS_PER_SECOND)


def tokens_per_second_per_device(value: float) -> Figure:
    return Figure("tokens_per_second_per_device", value, Unit.DEVICE_TOKENS)


def tflops_per_second_per_device(value: float) -> Figure:
    """The model's teraFLOPs per second, without recomputation."""
    return Figure("tflops_per_second_per_device", value, Unit.DEVICE_TFLOPS)


def measured_memory(value: int, *, kind: str) -> Figure:
    """The maximum of any rank so far: `allocated` on the device, or the whole `process` on the host."""
    return num_bytes(f"{kind}_memory", value)


def least_step_seconds(bound: StepBound) -> Figure:
    """The bound: no run of the plan on its device takes less."""
    return Figure("least_step_seconds", bound.step_seconds, Unit.SECONDS)


def most_tokens_per_second(step: StepWork, bound: StepBound) -> Figure:
    """The bound for the whole run."""
    return _rate("most_tokens_per_second", step, bound.step_seconds)


def most_tokens_per_second_per_device(step: StepWork, bound: StepBound) -> Figure:
    """The bound for one of the run's devices."""
    return _rate_per_device("most_tokens_per_second_per_device", step, bound.step_seconds)


def expected_step_seconds(expectation: StepExpectation) -> Figure:
    """The step's time that a run of the plan is expected to take."""
    return Figure("expected_step_seconds", expectation.step_seconds, Unit.SECONDS)


def uneven_step_seconds(expectation: StepExpectation) -> Figure:
    """The same where the experts of one rank get more rows than an equal share, and the others wait."""
    return Figure("uneven_step_seconds", expectation.step_seconds, Unit.SECONDS)


def expected_tokens_per_second(step: StepWork, expectation: StepExpectation) -> Figure:
    """The expectation for the whole run."""
    return _rate("expected_tokens_per_second", step, expectation.step_seconds)


def expected_tokens_per_second_per_device(step: StepWork, expectation: StepExpectation) -> Figure:
    """The expectation for one of the run's devices."""
    return _rate_per_device("expected_tokens_per_second_per_device", step, expectation.step_seconds)


def slow_tokens_per_second(step: StepWork, expectation: StepExpectation) -> Figure:
    """The low end of the expected interval, for the whole run."""
    return _rate("slow_tokens_per_second", step, expectation.slow_seconds)


def fast_tokens_per_second(step: StepWork, expectation: StepExpectation) -> Figure:
    """The high end of the expected interval, for the whole run."""
    return _rate("fast_tokens_per_second", step, expectation.fast_seconds)


def _rate(name: str, step: StepWork, seconds: float) -> Figure:
    return Figure(name, step.tokens / seconds, Unit.TOKENS_PER_SECOND)


def _rate_per_device(name: str, step: StepWork, seconds: float) -> Figure:
    return Figure(name, step.tokens / seconds / step.world_size, Unit.DEVICE_TOKENS)
