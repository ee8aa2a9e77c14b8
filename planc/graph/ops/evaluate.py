"""`evaluate`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.graph.ops.compute_loss import ComputeLoss
from planc.graph.ops.forward import Forward
from planc.graph.ops.receive_hidden import ReceiveHidden
from planc.graph.ops.send_hidden import SendHidden
from planc.graph.ops.shard_context import ShardContext
from planc.record import record
from planc.vocab import MeshDim

EvaluationOp = ShardContext | ReceiveHidden | Forward | SendHidden | ComputeLoss


@record(kw_only=True)
class Evaluate(Op):
    op: Literal["evaluate"] = "evaluate"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "When due, runs its body to compute the mean loss on evaluation data."
    label: str
    every_steps: int
    """The last step is due as well."""
    over: tuple[MeshDim, ...]
    """The mesh dims whose ranks see different tokens, and pp, whose last rank has the loss."""
    body: tuple[EvaluationOp, ...]
    """Of one micro-batch; every rank runs it equally often."""

    def effects(self) -> Effects:
        dims = (dim for op in self.body for dim in op.effects().communicates)
        return Effects(
            reads=(Resource.EVALUATION, Resource.WEIGHTS),
            communicates=tuple(dict.fromkeys((*dims, *self.over))),
        )
