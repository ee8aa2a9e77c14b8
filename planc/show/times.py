"""The times of a step as text and as data: the bound, and the expectation. They are two figures.

The cost of an unequal load of experts is one line more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from planc.devices.hardware import Device
from planc.estimate.bound import StepBound, step_bound
from planc.estimate.calibration import Calibration
from planc.estimate.efficiency import SLOWEST_LAUNCH
from planc.estimate.expectation import StepExpectation, step_expectation
from planc.estimate.result import Estimate
from planc.estimate.step_work import StepWork
from planc.figures import needs, times
from planc.figures.figure import Figure
from planc.record import record
from planc.tables import format_seconds, render_table


@record
class Times:
    """A step's times on a device; each is None if it can't be known."""

    step: StepWork
    device: Device
    bound: StepBound | None
    expected: StepExpectation | None


def times_of(
    step: StepWork,
    device: Device,
    *,
    devices_per_node: int | None = None,
    calibration: Calibration | None = None,
) -> Times:
    """Both times. Raises ValueError for another device's calibration."""
    expected = step_expectation(step, device, devices_per_node=devices_per_node, calibration=calibration)
    return Times(step, device, step_bound(step, device, devices_per_node=devices_per_node), expected)


def no_time(step: StepWork, device: Device) -> str:
    """Explain why nothing is expected of a device."""
    if step.not_modeled:
        return f"the time of {' and '.join(step.not_modeled)} is not modeled"
    return f"a peak FLOP/s or bandwidth of {device.name} is unknown"


def times_text(times: Times) -> str:
    """The expectation by part, and then the bound."""
    parts = []
    if times.expected is not None:
        rows = render_table([*expected_rows(times.step, times.expected)], right=(1,), indent="  ")
        parts.append(f"TIME PER STEP, expected, by {times.expected.source}\n{rows}")
    else:
        parts.append(f"TIME PER STEP, expected\n  unknown: {no_time(times.step, times.device)}\n")
    if times.bound is not None:
        rows = render_table([*bound_rows(times.step, times.bound)], right=(1,), indent="  ")
        parts.append(f"TIME PER STEP, at least: a bound, from {times.device.name}'s peaks\n{rows}")
    return "\n".join(parts)


Part = tuple[str, float, str]
"""A part of a step: its name, its seconds, and a note."""


def expected_parts(step: StepWork, expectation: StepExpectation) -> Iterator[Part]:
    """The parts of the expected time, which add up to it."""
    yield "matmuls", expectation.matmul_seconds, "forward, backward and recomputation"
    yield "attention", expectation.attention_seconds, ""
    yield "elementwise", expectation.elementwise_seconds, "norms, activations, loss, FSDP's copies"
    limit = expectation.seconds_per_launch(step)
    if limit < SLOWEST_LAUNCH or expectation.host_seconds:
        note = f"{step.kernels:_} launches: bound by the host above {1e6 * limit:.1f} us each"
        yield "host", expectation.host_seconds, note
    hidden = format_seconds(expectation.hidden_seconds)
    yield "communication", expectation.exposed_seconds, f"not hidden by compute; {hidden} is"
    if expectation.replicas_seconds:
        yield "replicas", expectation.replicas_seconds, "gradients sent after backward"
    yield "optimizer", expectation.optimizer_seconds, _optimizer(step)
    if step.pipeline is not None:
        yield "bubble", expectation.bubble_seconds, "the busiest pp rank waits for others"


def expected_rows(step: StepWork, expectation: StepExpectation) -> Iterator[tuple[str, str, str]]:
    """The expectation by part, then in total with its interval, then in tokens."""
    yield from map(_row, expected_parts(step, expectation))
    interval = f"{format_seconds(expectation.fast_seconds)} to {format_seconds(expectation.slow_seconds)}"
    yield (
        "step",
        times.expected_step_seconds(expectation).text,
        f"{interval}; the largest part is {expectation.limit}",
    )
    slow, fast = (
        times.slow_tokens_per_second(step, expectation),
        times.fast_tokens_per_second(step, expectation),
    )
    each = times.expected_tokens_per_second_per_device(step, expectation).text
    rate = times.expected_tokens_per_second(step, expectation).text
    yield "tokens", rate, f"{slow.number} to {fast.number}; {each}"


def bound_parts(step: StepWork, bound: StepBound) -> Iterator[Part]:
    """The parts of the bound. The first three overlap, so only the slowest of them counts."""
    waits = ", and waits for other stages" if step.pipeline is not None else ""
    yield "compute", bound.compute_seconds, f"FLOPs over the peak{waits}"
    yield "links", bound.link_seconds, "sent within a node"
    yield "network", bound.network_seconds, "sent between nodes, by all adapters of the group"
    if bound.replicas_seconds:
        yield "replicas", bound.replicas_seconds, "gradients sent after backward"
    yield "optimizer", bound.optimizer_seconds, _optimizer(step)


def bound_rows(step: StepWork, bound: StepBound) -> Iterator[tuple[str, str, str]]:
    """The bound by part, then in total, then in tokens."""
    yield from map(_row, bound_parts(step, bound))
    last = "replicas, then the optimizer" if bound.replicas_seconds else "the optimizer"
    least = times.least_step_seconds(bound).text
    yield "step", least, f"at least: the slowest ({bound.limit}), then {last}"
    each = times.most_tokens_per_second_per_device(step, bound).text
    yield "tokens", times.most_tokens_per_second(step, bound).text, f"at most, {each}"


def _row(part: Part) -> tuple[str, str, str]:
    name, seconds, note = part
    return name, format_seconds(seconds), note


def _optimizer(step: StepWork) -> str:
    moved = f"{step.optimizer_bytes} bytes per element through memory"
    flops = sum(product.flops * product.num_forward for product in step.optimizer_matmuls)
    return f"{moved}, and {flops:.3g} FLOPs" if flops else moved


def times_data(times: Times) -> dict[str, Any]:
    """Both times; an unknown one is null, with the reason if nothing is expected."""
    document: dict[str, Any] = {"bound": None, "expected": None}
    if times.bound is not None:
        document["bound"] = {
            **asdict(times.bound),
            **dict(map(_item, _bound_figures(times.step, times.bound))),
            "limit": times.bound.limit,
        }
    if times.expected is not None:
        document["expected"] = {
            **asdict(times.expected),
            **dict(map(_item, _expected_figures(times.step, times.expected))),
            "limit": times.expected.limit,
        }
    else:
        document["unknown"] = no_time(times.step, times.device)
    return document


def _item(figure: Figure) -> tuple[str, Any]:
    return figure.name, figure.value


def _bound_figures(step: StepWork, bound: StepBound) -> Iterator[Figure]:
    yield times.least_step_seconds(bound)
    yield times.most_tokens_per_second(step, bound)
    yield times.most_tokens_per_second_per_device(step, bound)


def _expected_figures(step: StepWork, expectation: StepExpectation) -> Iterator[Figure]:
    yield times.expected_step_seconds(expectation)
    yield times.expected_tokens_per_second(step, expectation)
    yield times.expected_tokens_per_second_per_device(step, expectation)
    yield times.slow_tokens_per_second(step, expectation)
    yield times.fast_tokens_per_second(step, expectation)


LOAD = 2
"""The experts of one rank get this many times the rows of an equal share."""


@record
class Imbalance:
    """A plan's estimate and times where the experts of one rank have `LOAD`."""

    estimated: Estimate
    times: Times | None
    """None where no device is known."""


def imbalance_text(imbalance: Imbalance, *, equal: Estimate, equal_times: Times | None) -> str:
    """The peak and the step with an imbalance, next to those of an equal load."""
    costs = [_cost("peak", needs.peak_memory(equal), needs.uneven_peak_memory(imbalance.estimated))]
    if (step := _step(imbalance)) is not None and equal_times is not None and equal_times.expected:
        costs.append(_cost("step", times.expected_step_seconds(equal_times.expected), step))
    load = f"with {LOAD} x the tokens on one rank's experts"
    return f"IMBALANCE\n  above, experts have an equal load; {load}: {', '.join(costs)}\n"


def _cost(name: str, equal: Figure, uneven: Figure) -> str:
    if equal.value == uneven.value:
        return f"the same {name}"
    return f"{name} {uneven.text} instead of {equal.text}"


def imbalance_data(imbalance: Imbalance) -> dict[str, Any]:
    """The figures of the imbalance alone."""
    figures = filter(None, (needs.uneven_peak_memory(imbalance.estimated), _step(imbalance)))
    return {"load": LOAD, **{one.name: one.value for one in figures}}


def _step(imbalance: Imbalance) -> Figure | None:
    """The expected time of a step; None if it can't be known."""
    known = imbalance.times
    return times.uneven_step_seconds(known.expected) if known is not None and known.expected else None
