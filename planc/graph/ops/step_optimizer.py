"""`optimizer.step`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class StepOptimizer(Op):
    op: Literal["optimizer.step"] = "optimizer.step"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Updates the parameters and clears the gradients."

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.OPTIMIZER, Resource.CLIPPED_GRADIENTS, Resource.WEIGHTS),
            writes=(Resource.OPTIMIZER, Resource.WEIGHTS),
        )
