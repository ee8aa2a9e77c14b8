"""The `logging`, `profile` and `guard` blocks: what watches a run.

`guard` decides how to handle a step with a wrong loss or gradient, and when to compare replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from planc.plan.keys import key, keyed
from planc.plan.nested import nested
from planc.plan.quantities import STEPS
from planc.plan.scalars import Bool, Choice, Float, Int, Quantity, Text
from planc.plan.types import Optional, Variant
from planc.record import record


@record
class TensorboardTracker:
    """Write TensorBoard event files to `tensorboard` in the run directory. Needs `planc[tensorboard]`."""


class WandbMode(StrEnum):
    ONLINE = "online"
    OFFLINE = "offline"


@keyed
class WandbTracker:
    """Log to a Weights & Biases run, which a resumed run continues. Needs `planc[wandb]`.

    The API key comes from WANDB_API_KEY or `wandb login`, never from a plan.
    """

    project: str | None = key(
        Optional(Text()), unsaid=None, doc="the project that the run belongs to; none is the plan's name"
    )
    mode: WandbMode = key(
        Choice(WandbMode),
        unsaid=WandbMode.ONLINE,
        doc="offline: write to the run directory, for `wandb sync`",
    )
    entity: str | None = key(Optional(Text()), unsaid=None, doc="the team or user; none is the account")
    name: str | None = key(Optional(Text()), unsaid=None, doc="the run's name; none is the plan's")


@keyed
class LoggingSpec:
    """Logs in addition to metrics.jsonl. Only rank 0 writes to trackers.

    A failing tracker never stops a run: planc warns once and counts the failures.
    """

    per_rank: bool = key(
        Bool(), unsaid=False, doc="write the steps of every rank, with its mesh coordinates, to logs/"
    )
    tracker: Mapping[str, TensorboardTracker | WandbTracker] = nested(
        {"tensorboard": TensorboardTracker, "wandb": WandbTracker}, doc="further destinations of the metrics"
    )


@keyed
class ProfileSpec:
    """Trace steps with torch.profiler on every rank, into `profile` in the run directory."""

    first_step: int = key(Int(1), doc="the first step to trace", example="3")
    last_step: int = key(Int(1), doc="the last step to trace", example="5")
    memory: bool = key(
        Bool(), unsaid=False, doc="also save a CUDA memory snapshot, for pytorch.org/memory_viz"
    )


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
