"""`fsdp.prefetch`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class PrefetchUnits(Op):
    op: Literal["fsdp.prefetch"] = "fsdp.prefetch"
    stage: ClassVar[Stage] = Stage.FULLY_SHARD
    summary: ClassVar[str] = "Gathers FSDP units ahead of their use, in forward and in backward."
    ahead: int
    """How many units are gathered while one computes."""
    units: tuple[str, ...]
    """The first module of each unit, in forward's order."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
