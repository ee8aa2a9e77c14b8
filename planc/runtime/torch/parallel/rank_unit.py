"""An FSDP unit as a rank holds it."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.fsdp import FSDPModule

from planc.graph.ops import FullyShard


@dataclass(frozen=True, slots=True)
class RankUnit:
    """The first module of a unit, which has the unit's state, and the op that made it."""

    module: FSDPModule
    op: FullyShard
    stage: int | None
    """Its stage of a pipeline; None without one, and for a root without parameters."""
