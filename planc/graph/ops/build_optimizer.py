"""`optimizer.build`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class BuildOptimizer(Op):
    op: Literal["optimizer.build"] = "optimizer.build"
    stage: ClassVar[Stage] = Stage.OPTIMIZER
    summary: ClassVar[str] = "Builds AdamW over the sharded parameters."
    kind: str
    lr: float
    betas: tuple[float, float]
    eps: float
    groups: tuple[tuple[float, tuple[str, ...]], ...]
    """(weight decay, parameter names), every parameter in exactly one group."""

    def effects(self) -> Effects:
        return Effects(reads=(Resource.WEIGHTS,), writes=(Resource.OPTIMIZER,))
