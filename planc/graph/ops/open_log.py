"""`log.open`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Stage
from planc.record import record


@record(kw_only=True)
class Tracker:
    """A tracker of metrics. The fields after `kind` are W&B's, and None for others."""

    kind: Literal["tensorboard", "wandb"]
    mode: Literal["online", "offline"] | None = None
    project: str | None = None
    entity: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        """`wandb(project=tiny, mode=offline)`, without fields that the plan does not set."""
        names = ("project", "mode", "entity", "name")
        given = [f"{name}={value}" for name in names if (value := getattr(self, name)) is not None]
        return f"{self.kind}({', '.join(given)})" if given else self.kind


@record(kw_only=True)
class OpenLog(Op):
    op: Literal["log.open"] = "log.open"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = "Opens each rank's log, and on rank 0 the trackers."
    per_rank: bool
    trackers: tuple[Tracker, ...]

    def effects(self) -> Effects:
        return Effects()
