"""`tp.share_heads`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record(kw_only=True)
class ShareHeads(Op):
    op: Literal["tp.share_heads"] = "tp.share_heads"
    stage: ClassVar[Stage] = Stage.TENSOR_PARALLEL
    summary: ClassVar[str] = "Sets the head counts in the code of attentions to those of one rank."
    modules: tuple[str, ...]
    counts: tuple[str, ...]
    """Integer attributes, as paths from each module, that are divided by the number of ranks."""
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        # It sends nothing: `over` is the mesh dim whose ranks share the heads.
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
