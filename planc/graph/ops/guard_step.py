"""`step.guard`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class NonfiniteGuard:
    """The action for a step with a NaN or inf loss or gradient; `at_most` None stops the run at once."""

    at_most: int | None

    def __str__(self) -> str:
        return _action(self.at_most)


@record(kw_only=True)
class SpikeGuard:
    """The action for a step whose loss is a spike compared with the `window` losses before it."""

    deviations: float
    window: int
    at_most: int | None

    def __str__(self) -> str:
        return f"{_action(self.at_most)} above {self.deviations:g} deviations of {self.window} steps"


def _action(at_most: int | None) -> str:
    return "stop" if at_most is None else f"skip at most {at_most} in a row"


@record(kw_only=True)
class GuardStep(Op):
    op: Literal["step.guard"] = "step.guard"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Checks the loss and the gradient norm; a bad step is skipped or ends the run."
    nonfinite: NonfiniteGuard
    loss_spike: SpikeGuard | None
    over: tuple[MeshDim, ...]
    """The mesh dims whose ranks each compute the whole loss, which could differ in its last bits."""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.METRICS, Resource.CLIPPED_GRADIENTS),
            writes=(Resource.CLIPPED_GRADIENTS,),
            communicates=self.over,
        )
