"""Each rank's shard of every parameter: tensor or expert parallelism first, then FSDP on its shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, FullyShard, ShardTensorParallel
from planc.inventory.schema import Inventory
from planc.record import record
from planc.vocab import (
    DType,
    ExpertDim,
    GroupDim,
    MeshDim,
    Placement,
    Replicate,
    Shard,
    local_shape,
)

Shape = tuple[int, ...]


@record
class ParameterLayout:
    """One parameter's placements and shapes.

    `placements` lists the mesh dims of more than one rank; FSDP's dims are one entry, since it shards over
    all of them at once. `tp_shape` is the shard of the first rank of tp and ep; `local_shape` rank 0's
    shard of it, `last_shape` the last rank's: smaller if the sharding is uneven.
    """

    fqn: str
    module: str
    shape: Shape
    placements: tuple[tuple[tuple[GroupDim, ...], Placement], ...]
    tp_shape: Shape
    local_shape: Shape
    last_shape: Shape
    dtype: DType
    block: tuple[int, int] | None = None
    """The elements and the bytes of each block, of a weight that is stored in 4 bits."""
    is_frozen: bool = False
    """Whether it is not trained, by the plan or by the model's own code."""
    has_gradient: bool = True

    @property
    def local_bytes(self) -> int:
        """Bytes on rank 0, which holds the most: chunks shrink towards the last rank."""
        return self._bytes(self.local_shape)

    @property
    def total_bytes(self) -> int:
        return self._bytes(self.shape)

    def _bytes(self, shape: Shape) -> int:
        num_elements, num_bytes = self.block or (1, self.dtype.size_bytes)
        return prod(shape) // num_elements * num_bytes

    def num_gathered(self, dtype: DType) -> int:
        """The elements of this dtype in which FSDP gathers rank 0's shard: bytes of blocks are not cast."""
        return -(-self.local_bytes // dtype.size_bytes) if self.block else prod(self.local_shape)

    @property
    def stored_as(self) -> str:
        """The dtype, or the format of blocks."""
        return "nf4" if self.block else str(self.dtype)


@record
class _Division:
    """The shardings of a parameter before FSDP's, by dim, and the dims of FSDP's."""

    placements: tuple[tuple[GroupDim, Placement], ...]
    shard_over: tuple[GroupDim, ...]
    tensor_dim: int = 0
    """The dimension that FSDP shards."""

    @property
    def is_of_experts(self) -> bool:
        """Whether ranks hold different experts."""
        return self.placements[0][0] is ExpertDim.EP


def layouts(graph: Graph, inventory: Inventory) -> tuple[ParameterLayout, ...]:
    """Every parameter of the model in its order, tied ones once.

    The arithmetic is DTensor's and FSDP2's: `fully_shard` chunks tensor dim 0 of the tensor that tensor
    parallelism leaves on the rank, not of the whole one.
    """
    divisions, of_others = _divisions(graph, inventory)
    build = next(op for op in graph.setup if isinstance(op, BuildModel))
    frozen = frozenset(graph.frozen)
    others, quantized = graph.other_dtypes, graph.quantized
    size = (quantized.block, quantized.block_bytes) if quantized else None
    blocks = dict.fromkeys(quantized.parameters if quantized else (), size)
    # Layers repeat, so most parameters have the layout of an earlier one.
    alike: dict[object, ParameterLayout] = {}
    parameters = []
    for fqn, module, parameter in inventory.parameters():
        division = divisions.get((module.fqn, parameter.name), of_others)
        dtype = others.get(fqn, build.dtype)
        key = (parameter.shape, division, dtype)
        if key not in alike:
            alike[key] = _layout(graph, division, shape=parameter.shape, dtype=dtype)
        is_frozen = fqn in frozen
        parameters.append(
            replace(
                alike[key],
                fqn=fqn,
                module=module.fqn,
                block=blocks.get(fqn),
                is_frozen=is_frozen,
                has_gradient=not is_frozen and parameter.name not in module.unreached,
            )
        )
    return tuple(parameters)


def _divisions(graph: Graph, inventory: Inventory) -> tuple[Mapping[tuple[str, str], _Division], _Division]:
    """The divisions by module and local parameter name, and that of all other parameters."""
    units = [op for op in graph.setup if isinstance(op, FullyShard)]
    over = next((op.shard_over for op in reversed(units)), ())
    divisions = {
        (module, name): _Division(((mesh_dim, placement),), over)
        for op in graph.setup
        if isinstance(op, ShardTensorParallel)
        for module in op.modules
        for name, placement in op.parameters
        for mesh_dim in op.over
    }
    of_others = _Division(((MeshDim.TP, Replicate()),), over)
    experts = graph.experts
    of_experts = next((op.shard_over for op in units if ExpertDim.EFSDP in op.shard_over), ())
    for module in map(inventory.get, experts.modules if experts else ()):
        # A part of a model lacks some.
        for key in ((module.fqn, own.name) for own in module.parameters) if module else ():
            placements = ((ExpertDim.EP, Shard(0)), *divisions.get(key, of_others).placements)
            by_features = experts is not None and key[0] in experts.by_features
            divisions[key] = _Division(placements, of_experts, tensor_dim=int(by_features))
    return divisions, of_others


def _layout(graph: Graph, division: _Division, *, shape: Shape, dtype: DType) -> ParameterLayout:
    """The layout of every parameter with this shape and sharding, without a name."""
    fsdp_size = prod(map(graph.size, division.shard_over))
    first = last = shape
    for dim, placement in division.placements:
        size = graph.size(dim)
        first = local_shape(first, placement, parts=size, index=0)
        last = local_shape(last, placement, parts=size, index=size - 1)
    by_fsdp = Shard(division.tensor_dim)
    return ParameterLayout(
        fqn="",
        module="",
        shape=shape,
        placements=tuple(_placements(graph, division)),
        tp_shape=first,
        local_shape=local_shape(first, by_fsdp, parts=fsdp_size, index=0),
        last_shape=local_shape(last, by_fsdp, parts=fsdp_size, index=fsdp_size - 1),
        dtype=dtype,
    )


def _placements(graph: Graph, division: _Division) -> Iterator[tuple[tuple[GroupDim, ...], Placement]]:
    before = dict(division.placements)
    sharding = tuple(dim for dim in division.shard_over if graph.size(dim) > 1)
    for dim in _dims(graph, division):
        if graph.size(dim) == 1:
            continue
        if dim in before:
            yield (dim,), before[dim]
        elif dim not in sharding:
            yield (dim,), Replicate()
        elif dim is sharding[0]:
            yield sharding, Shard(division.tensor_dim)


def _dims(graph: Graph, division: _Division) -> Iterator[GroupDim]:
    """The graph's mesh dims; for experts, the factors of theirs in their place."""
    split = graph.experts.over if graph.experts and division.is_of_experts else ()
    for mesh_dim, _ in graph.mesh:
        if mesh_dim not in split:
            yield mesh_dim
        elif mesh_dim is split[0]:
            yield from ExpertDim
