"""`fsdp.shard`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import DType, MeshDim


@record(kw_only=True)
class FullyShard(Op):
    op: Literal["fsdp.shard"] = "fsdp.shard"
    stage: ClassVar[Stage] = Stage.FULLY_SHARD
    summary: ClassVar[str] = "Shards groups of modules: parameters, gradients and optimizer state (FSDP2)."
    groups: tuple[tuple[str, ...], ...]
    """Each group of modules is gathered together; ("",) is the root with the remaining parameters."""
    shard_over: tuple[MeshDim, ...]
    replicate_over: tuple[MeshDim, ...]
    reshard_after_forward: bool
    reshard_after_backward: bool
    """Otherwise gathered parameters stay until the step's last backward."""
    reduce_every: Literal["step", "micro_batch"]
    """Whether gradients are whole until a step's last backward, or reduced and added to shards in each."""
    param_dtype: DType | None
    reduce_dtype: DType | None
    cpu_offload: bool
    """Shards of parameters and gradients are in host memory, and the optimizer steps there."""

    @property
    def unstable(self) -> str:
        dims = (*self.replicate_over, *self.shard_over)
        return "meshes flattened and joined: private in PyTorch" if len(dims) > 1 else ""

    def effects(self) -> Effects:
        return Effects(
            reads=(Resource.MODEL,),
            writes=(Resource.MODEL,),
            communicates=(*self.replicate_over, *self.shard_over),
        )
