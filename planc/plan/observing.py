"""The `logging` and `profile` blocks: trackers, per-rank logs and traces."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from planc.plan.keys import key, keyed
from planc.plan.nested import nested
from planc.plan.scalars import Bool, Choice, Int, Text
from planc.plan.types import Optional
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
