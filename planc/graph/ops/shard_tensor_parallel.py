"""`tp.shard`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.styles.edges import Edge
from planc.styles.style import StyleUse
from planc.vocab import MeshDim, Placement


@record
class Rows:
    """The output features that a rank computes of a layer with replicated parameters: a shard of each part.

    `parts` are widths, each with the number of neighboring ranks that compute the same shard.
    """

    parts: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        shards = (
            f"a shard of {width}" + (f" on {copies} ranks" * (copies > 1)) for width, copies in self.parts
        )
        return ", ".join(shards)

    def num_own(self, num_ranks: int) -> int:
        """The features of one rank."""
        return sum(width * copies // num_ranks for width, copies in self.parts)


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
    rows: Rows | None = None
    """What a rank computes of layers whose parameters are replicated; None for all that it has."""
    over: tuple[MeshDim, ...]

    @property
    def unstable(self) -> str:
        return "torch.distributed.tensor.parallel: experimental in PyTorch, and subject to change"

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,), communicates=self.over)
