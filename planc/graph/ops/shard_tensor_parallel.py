"""`tp.shard`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.styles.edges import Edge
from planc.styles.style import StyleUse
from planc.vocab import MeshDim, Placement


@record(kw_only=True)
class ShardTensorParallel(Op):
    op: Literal["tp.shard"] = "tp.shard"
    stage: ClassVar[Stage] = Stage.TENSOR_PARALLEL
    summary: ClassVar[str] = "Shards modules over the tensor-parallel mesh dim with one style."
    modules: tuple[str, ...]
    use: StyleUse
    edges: tuple[Edge, ...]
    """What happens to the values that enter and leave a module, forward and backward."""
    parameters: tuple[tuple[str, Placement], ...]
    """Each parameter's local name and placement."""
    over: tuple[MeshDim, ...]

    @property
    def unstable(self) -> str:
        return "torch.distributed.tensor.parallel: experimental in PyTorch, and subject to change"

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,), communicates=self.over)
