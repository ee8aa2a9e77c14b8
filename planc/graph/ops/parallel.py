"""Ops that shard the model: tensor parallelism and FSDP."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Annotated, ClassVar, Literal

from planc.graph.consequence import DERIVED, layout, numerics
from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.styles.edges import Edge
from planc.styles.style import StyleUse
from planc.vocab import DType, GroupDim, MeshDim, Placement


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


_SHARDING = Effects(
    reads=(Resource.MESH, Resource.MODEL), finds=(Resource.PIPELINE,), writes=(Resource.MODEL,)
)
"""The effects of an op that gives ranks different parts of the model's modules."""

_STYLES = layout("tensor_parallel", is_in_sums=True)


@record(kw_only=True)
class ShardTensorParallel(Op):
    op: Literal["tp.shard"] = "tp.shard"
    stage: ClassVar[Stage] = Stage.TENSOR_PARALLEL
    summary: ClassVar[str] = "Shards modules over the tensor-parallel mesh dim with one style."
    touches: ClassVar[Effects] = _SHARDING
    modules: Annotated[tuple[str, ...], _STYLES]
    use: Annotated[StyleUse, _STYLES]
    edges: Annotated[tuple[Edge, ...], _STYLES]
    """The transfers of values that enter and leave a module, forward and backward."""
    parameters: Annotated[tuple[tuple[str, Placement], ...], _STYLES]
    """Each parameter's local name and placement."""
    rows: Annotated[Rows | None, _STYLES] = None
    """The outputs that a rank computes of layers whose parameters are replicated; None for all of them."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]

    @property
    def unstable(self) -> str:
        return "torch.distributed.tensor.parallel: experimental in PyTorch, and subject to change"


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
    touches: ClassVar[Effects] = _SHARDING
    modules: Annotated[tuple[str, ...], DERIVED]
    counts: Annotated[tuple[str, ...], DERIVED]
    """Integer attributes, as paths from each module, that are divided by the number of ranks."""
    copies: Annotated[int, DERIVED] = 1
    """Neighboring ranks that compute the same key/value heads."""
    group_counts: Annotated[tuple[str, ...], DERIVED] = ()
    """Attributes that are divided by `copies`: the queries of each key/value head."""
    kv_counts: Annotated[tuple[str, ...], DERIVED] = ()
    """Attributes that are divided by the number of ranks with different key/value heads."""
    arguments: Annotated[tuple[HeadArgument, ...], DERIVED] = ()
    over: Annotated[tuple[MeshDim, ...], DERIVED]

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        # It sends nothing: `over` is the mesh dim whose ranks share the heads.
        return ()


_EXPERTS = layout("expert_parallel", is_in_sums=True)


@record(kw_only=True)
class ShardExperts(Op):
    op: Literal["experts.shard"] = "experts.shard"
    stage: ClassVar[Stage] = Stage.TENSOR_PARALLEL
    summary: ClassVar[str] = "Gives ranks different experts; each sends the others their tokens."
    touches: ClassVar[Effects] = _SHARDING
    modules: Annotated[tuple[str, ...], _EXPERTS]
    size: Annotated[int, _EXPERTS]
    """Neighboring ranks along `over` that hold different experts: `ep`. The others are `efsdp`."""
    over: Annotated[tuple[MeshDim, ...], _EXPERTS]
    by_features: Annotated[tuple[str, ...], DERIVED] = ()
    """The modules of which FSDP shards tensor dimension 1: it can't share their experts equally."""

    @property
    def unstable(self) -> str:
        return "a mesh dim split into two: private in PyTorch"


@record(kw_only=True)
class CapExperts(Op):
    op: Literal["experts.cap"] = "experts.cap"
    stage: ClassVar[Stage] = Stage.TENSOR_PARALLEL
    summary: ClassVar[str] = (
        "Lets experts take only the first tokens of each sequence that choose them, up to a capacity."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MODEL,), finds=(Resource.PIPELINE,), writes=(Resource.MODEL,)
    )
    modules: Annotated[tuple[str, ...], numerics("expert_parallel.capacity")]
    capacity: Annotated[float, numerics("expert_parallel.capacity")]
    """A multiple of an equal share of a sequence's tokens."""

    def num_rows(self, *, length: int, per_token: int, num_experts: int) -> int:
        """The most tokens that an expert takes of a sequence; at least one."""
        share = Fraction(length * per_token, num_experts)
        return min(length, ceil(Fraction(str(self.capacity)) * share))


_DIMS = layout("fsdp", is_in_sums=True)


@record(kw_only=True)
class FullyShard(Op):
    op: Literal["fsdp.shard"] = "fsdp.shard"
    stage: ClassVar[Stage] = Stage.FULLY_SHARD
    summary: ClassVar[str] = "Shards groups of modules: parameters, gradients and optimizer state (FSDP2)."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.MODEL),
        finds=(Resource.PIPELINE, Resource.UNITS),
        writes=(Resource.MODEL, Resource.UNITS),
    )
    groups: Annotated[tuple[tuple[str, ...], ...], layout("fsdp", "FSDP units", is_in_sums=True)]
    """Each group of modules is gathered together; ("",) is the root with the remaining parameters."""
    shard_over: Annotated[tuple[GroupDim, ...], _DIMS]
    """The mesh dims; of experts on different ranks, the factor of them that shards the same ones."""
    replicate_over: Annotated[tuple[MeshDim, ...], _DIMS]
    reshard_after_forward: Annotated[bool, layout("fsdp.reshard_after_forward")]
    reshard_after_backward: Annotated[bool, layout("fsdp.reshard_after_backward")]
    """Otherwise gathered parameters stay until the step's last backward."""
    reduce_every: Annotated[Literal["step", "micro_batch"], numerics("fsdp.reduce_every", is_in_sums=True)]
    """Whether gradients are whole until a step's last backward, or reduced and added to shards in each."""
    param_dtype: Annotated[DType | None, numerics("fsdp.param_dtype")]
    reduce_dtype: Annotated[DType | None, numerics("fsdp.reduce_dtype", is_in_sums=True)]
    cpu_offload: Annotated[bool, layout("fsdp.cpu_offload")]
    """Shards of parameters and gradients are in host memory, and the optimizer steps there."""

    @property
    def unstable(self) -> str:
        dims = (*self.replicate_over, *self.shard_over)
        return "meshes flattened and joined: private in PyTorch" if len(dims) > 1 else ""

    @property
    def communicates(self) -> tuple[GroupDim, ...]:
        return (*self.replicate_over, *self.shard_over)


@record(kw_only=True)
class PrefetchUnits(Op):
    op: Literal["fsdp.prefetch"] = "fsdp.prefetch"
    stage: ClassVar[Stage] = Stage.FULLY_SHARD
    summary: ClassVar[str] = "Gathers FSDP units ahead of their use, in forward and in backward."
    touches: ClassVar[Effects] = Effects(reads=(Resource.MODEL, Resource.UNITS), writes=(Resource.MODEL,))
    ahead: Annotated[int, layout("fsdp.prefetch")]
    """The number of units that are gathered while one computes."""
    units: Annotated[tuple[str, ...], DERIVED]
    """The first module of each unit, in forward's order."""
