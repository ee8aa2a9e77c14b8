"""The cost of an unequal load of experts, as one line and as data."""

from __future__ import annotations

from typing import Any

from planc.estimate.result import Estimate
from planc.figures import needs, times
from planc.figures.figure import Figure
from planc.record import record
from planc.show.times import Times

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
