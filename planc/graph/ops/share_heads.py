"""`tp.share_heads`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import MeshDim


@record
class HeadArgument:
    """An argument of attentions of which a rank gets its own heads, by name.

    `tensor_dim` holds the values of `num_heads` heads; with `is_per_sample` those of one sample after the
    other.
    """

    argument: str
    tensor_dim: int
    num_heads: int
    is_per_sample: bool


@record(kw_only=True)
class ShareHeads(Op):
    op: Literal["tp.share_heads"] = "tp.share_heads"
    stage: ClassVar[Stage] = Stage.TENSOR_PARALLEL
    summary: ClassVar[str] = "Gives attentions a rank's head counts, and its part of arguments by head."
    modules: tuple[str, ...]
    counts: tuple[str, ...]
    """Integer attributes, as paths from each module, that are divided by the number of ranks."""
    copies: int = 1
    """Neighboring ranks that compute the same key/value heads."""
    group_counts: tuple[str, ...] = ()
    """Attributes that are divided by `copies`: the queries of each key/value head."""
    kv_counts: tuple[str, ...] = ()
    """Attributes that are divided by the number of ranks with different key/value heads."""
    arguments: tuple[HeadArgument, ...] = ()
    over: tuple[MeshDim, ...]

    def effects(self) -> Effects:
        # It sends nothing: `over` is the mesh dim whose ranks share the heads.
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
