"""The `logging` and `profile` blocks: what is told of a run besides its metrics, to whom, and when."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from planc.plan.scalars import Bool, Choice, Int, Text
from planc.plan.types import Optional, key, nested
from planc.record import record


@record
class TensorboardTracker:
    """Event files for TensorBoard in the run's folder, under `tensorboard`. Needs `planc[tensorboard]`."""


class WandbMode(StrEnum):
    ONLINE = "online"
    OFFLINE = "offline"


@record
class WandbTracker:
    """A run of Weights & Biases; a resumed run goes on with it. Needs `planc[wandb]`.

    Its key comes from WANDB_API_KEY or `wandb login`, never from a plan.
    """

    project: str = key(Text(), doc="the project that the run belongs to", example='"tiny-llama"')
    mode: WandbMode = key(
        Choice(WandbMode), default=WandbMode.ONLINE, doc="offline: into the run's folder, for `wandb sync`"
    )
    entity: str | None = key(Optional(Text()), default=None, doc="the team or user; none is the account")
    name: str | None = key(Optional(Text()), default=None, doc="the run's name; none is the plan's")


@record
class LoggingSpec:
    """What is told of a run besides metrics.jsonl. Rank 0 alone speaks to trackers.

    A tracker that fails never stops a run: it is warned of once, and its failures are counted.
    """

    per_rank: bool = key(
        Bool(), default=False, doc="every rank writes its own steps, with its place in the mesh, to logs/"
    )
    tracker: Mapping[str, TensorboardTracker | WandbTracker] = nested(
        {"tensorboard": TensorboardTracker, "wandb": WandbTracker}, doc="where metrics go besides"
    )


@record
class ProfileSpec:
    """Steps that torch.profiler traces on every rank, into `profile` in the run's folder."""

    first_step: int = key(Int(1), doc="the first step that is traced", example="3")
    last_step: int = key(Int(1), doc="the last one", example="5")
    memory: bool = key(Bool(), default=False, doc="a snapshot of CUDA memory too, for pytorch.org/memory_viz")
