"""The `guard` block: how to handle a step with a wrong loss or gradient, and when to compare replicas."""

from __future__ import annotations

from planc.plan.keys import key, keyed
from planc.plan.quantities import STEPS
from planc.plan.scalars import Float, Int, Quantity
from planc.plan.types import Optional, Variant
from planc.record import record

_DEVIATIONS = "a loss this many deviations above the window's median is a spike"
_WINDOW = "number of earlier steps to compare with; no loss is a spike before that"
_AT_MOST = "consecutive steps that may be skipped; the next one ends the run"


@record
class StopAtNonfinite:
    """End the run before the weights change."""


@keyed
class SkipNonfinite:
    """Leave the weights as they are, and continue with the next batch."""

    at_most: int = key(Int(1), unsaid=5, doc=_AT_MOST)


@keyed
class StopAtSpike:
    """End the run before the weights change."""

    deviations: float = key(Float(1.0, 1e6), unsaid=6.0, doc=_DEVIATIONS)
    window: int = key(Quantity(STEPS, low=5), unsaid=50, doc=_WINDOW)


@keyed
class SkipSpike:
    """Leave the weights as they are, and continue with the next batch."""

    deviations: float = key(Float(1.0, 1e6), unsaid=6.0, doc=_DEVIATIONS)
    window: int = key(Quantity(STEPS, low=5), unsaid=50, doc=_WINDOW)
    at_most: int = key(Int(1), unsaid=5, doc=_AT_MOST)


Nonfinite = StopAtNonfinite | SkipNonfinite
Spike = StopAtSpike | SkipSpike


@keyed
class GuardSpec:
    """The reaction to a step with a wrong loss or gradient, and the interval between comparisons of replicas.

    A spike is measured against the median loss of the earlier steps that were not skipped, in deviations:
    1.4826 times the median distance from that median, and at least one hundredth of it.
    """

    nonfinite: Nonfinite = key(
        Variant({"stop": StopAtNonfinite, "skip": SkipNonfinite}, "reaction"),
        unsaid=StopAtNonfinite(),
        doc="a loss or a gradient that is NaN or infinite",
    )
    loss_spike: Spike | None = key(
        Optional(Variant({"stop": StopAtSpike, "skip": SkipSpike}, "reaction")),
        unsaid=None,
        doc="a loss far above the earlier ones",
    )
    replicas_every: int | None = key(
        Optional(Quantity(STEPS, low=1)),
        unsaid=None,
        doc="steps between bitwise comparisons of all replicated parameters",
    )
