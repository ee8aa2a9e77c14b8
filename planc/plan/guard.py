"""The `guard` block: what becomes of a step whose numbers are wrong, and how copies of weights compare."""

from __future__ import annotations

from planc.plan.scalars import STEPS, Float, Int, Quantity
from planc.plan.types import Optional, Variant, key
from planc.record import record

_DEVIATIONS = "a loss above the window's median by more of the window's deviations than this is a spike"
_WINDOW = "how many earlier steps a loss is compared with; it is judged once there are so many"
_AT_MOST = "after so many skipped steps in a row, the next one ends the run"


@record
class StopAtNonfinite:
    """End the run before the weights change."""


@record
class SkipNonfinite:
    """Leave the weights as they are, and go on with the next batch."""

    at_most: int = key(Int(1), default=5, doc=_AT_MOST)


@record
class StopAtSpike:
    """End the run before the weights change."""

    deviations: float = key(Float(1.0, 1e6), default=6.0, doc=_DEVIATIONS)
    window: int = key(Quantity(STEPS, low=5), default=50, doc=_WINDOW)


@record
class SkipSpike:
    """Leave the weights as they are, and go on with the next batch."""

    deviations: float = key(Float(1.0, 1e6), default=6.0, doc=_DEVIATIONS)
    window: int = key(Quantity(STEPS, low=5), default=50, doc=_WINDOW)
    at_most: int = key(Int(1), default=5, doc=_AT_MOST)


Nonfinite = StopAtNonfinite | SkipNonfinite
Spike = StopAtSpike | SkipSpike


@record
class GuardSpec:
    """What becomes of a step whose loss or gradient is wrong, and when replicas are compared.

    A spike is measured by the median of the losses of the steps before it that were taken, and by their
    deviation: 1.4826 times the median distance from it, and at least a hundredth of it.
    """

    nonfinite: Nonfinite = key(
        Variant({"stop": StopAtNonfinite, "skip": SkipNonfinite}, "reaction"),
        default=StopAtNonfinite(),
        doc="a loss or a gradient that is NaN or infinite",
    )
    loss_spike: Spike | None = key(
        Optional(Variant({"stop": StopAtSpike, "skip": SkipSpike}, "reaction")),
        default=None,
        doc="a loss far above those before it",
    )
    replicas_every: int | None = key(
        Optional(Quantity(STEPS, low=1)),
        default=None,
        doc="steps between comparisons of every parameter that several ranks hold, bit by bit",
    )
