"""`accumulate`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.graph.ops.backward import Backward
from planc.graph.ops.compute_loss import ComputeLoss
from planc.graph.ops.compute_weight_gradients import ComputeWeightGradients
from planc.graph.ops.forward import Forward
from planc.graph.ops.receive_hidden import ReceiveHidden
from planc.graph.ops.send_hidden import SendHidden
from planc.graph.ops.shard_context import ShardContext
from planc.record import record

MicroOp = (
    ShardContext | ReceiveHidden | Forward | SendHidden | ComputeLoss | Backward | ComputeWeightGradients
)


@record(kw_only=True)
class Accumulate(Op):
    op: Literal["accumulate"] = "accumulate"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Repeats its body over the step's micro-batches and accumulates gradients."
    times: int
    body: tuple[MicroOp, ...]
    orders: tuple[str, ...] = ()
    """In a pipeline, what each pp rank runs, in order: see `planc.pipelining.orders`. Ops up to the loss are
    a forward, those after it are a backward, but for `backward.weights`."""

    def effects(self) -> Effects:
        """The body's effects: resources it reads before writing them, all it writes, and its mesh dims."""
        parts = [op.effects() for op in self.body]
        written: set[str] = set()
        reads: list[Resource] = []
        for part in parts:
            reads.extend(resource for resource in part.reads if resource not in written)
            written.update(part.writes)
        return Effects(
            reads=tuple(dict.fromkeys(reads)),
            writes=tuple(dict.fromkeys(resource for part in parts for resource in part.writes)),
            communicates=tuple(dict.fromkeys(dim for part in parts for dim in part.communicates)),
        )
