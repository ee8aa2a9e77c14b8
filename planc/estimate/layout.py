"""Each rank's shard of every parameter: tensor parallelism first, then FSDP on its shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, FullyShard, ShardTensorParallel
from planc.inventory.schema import Inventory
from planc.record import record
from planc.vocab import DType, MeshDim, Placement, Replicate, Shard, local_shape

Shape = tuple[int, ...]


@record
class ParameterLayout:
    """One parameter's placements and shapes.

    `placements` lists the mesh dims of more than one rank; FSDP's dims are one entry, since it shards over
    all of them at once. `tp_shape` is the shard of the first rank of tp, `local_shape` rank 0's shard of it,
    `last_shape` the last rank's: smaller if the sharding is uneven.
    """

    fqn: str
    module: str
    shape: Shape
    placements: tuple[tuple[tuple[MeshDim, ...], Placement], ...]
    tp_shape: Shape
    local_shape: Shape
    last_shape: Shape
    dtype: DType
    is_frozen: bool = False
    """Whether the model's code builds it without `requires_grad`."""
    has_gradient: bool = True

    @property
    def local_bytes(self) -> int:
        """Bytes on rank 0, which holds the most: chunks shrink towards the last rank."""
        return prod(self.local_shape) * self.dtype.size_bytes

    @property
    def total_bytes(self) -> int:
        return prod(self.shape) * self.dtype.size_bytes


@record
class _Division:
    """The sharding of all parameters by the graph's ops."""

    tensor_parallel: Mapping[tuple[str, str], tuple[MeshDim, Placement]]
    """Placements by module and local parameter name."""
    shard_over: tuple[MeshDim, ...]


def layouts(graph: Graph, inventory: Inventory) -> tuple[ParameterLayout, ...]:
    """Every parameter of the model in its order, tied ones once.

    The arithmetic is DTensor's and FSDP2's: `fully_shard` chunks tensor dim 0 of the tensor that tensor
    parallelism leaves on the rank, not of the whole one.
    """
    division = _division(graph)
    build = next(op for op in graph.setup if isinstance(op, BuildModel))
    others = build.other_dtypes
    # Layers repeat, so most parameters have the layout of an earlier one.
    alike: dict[object, ParameterLayout] = {}
    found = []
    for fqn, module, parameter in inventory.parameters():
        divided = division.tensor_parallel.get((module.fqn, parameter.name), (MeshDim.TP, Replicate()))
        dtype = others.get(fqn, build.dtype)
        key = (parameter.shape, divided, dtype)
        if key not in alike:
            alike[key] = _layout(
                graph, division.shard_over, divided=divided, shape=parameter.shape, dtype=dtype
            )
        is_frozen = parameter.name in module.frozen
        found.append(
            replace(
                alike[key],
                fqn=fqn,
                module=module.fqn,
                is_frozen=is_frozen,
                has_gradient=not is_frozen and parameter.name not in module.unreached,
            )
        )
    return tuple(found)


def _division(graph: Graph) -> _Division:
    tensor_parallel = {
        (module, name): (mesh_dim, placement)
        for op in graph.setup
        if isinstance(op, ShardTensorParallel)
        for module in op.modules
        for name, placement in op.parameters
        for mesh_dim in op.over
    }
    shard_over = next((op.shard_over for op in graph.setup if isinstance(op, FullyShard)), ())
    return _Division(tensor_parallel, shard_over)


def _layout(
    graph: Graph,
    shard_over: tuple[MeshDim, ...],
    *,
    divided: tuple[MeshDim, Placement],
    shape: Shape,
    dtype: DType,
) -> ParameterLayout:
    """The layout of every parameter with this shape and sharding, without a name."""
    tp_dim, tp_placement = divided
    tp_size = graph.size(tp_dim)
    fsdp_size = prod(graph.size(mesh_dim) for mesh_dim in shard_over)
    first = local_shape(shape, tp_placement, parts=tp_size, index=0)
    last = local_shape(shape, tp_placement, parts=tp_size, index=tp_size - 1)
    return ParameterLayout(
        fqn="",
        module="",
        shape=shape,
        placements=tuple(_placements(graph, shard_over, tp_placement)),
        tp_shape=first,
        local_shape=local_shape(first, Shard(0), parts=fsdp_size, index=0),
        last_shape=local_shape(last, Shard(0), parts=fsdp_size, index=fsdp_size - 1),
        dtype=dtype,
    )


def _placements(
    graph: Graph, shard_over: tuple[MeshDim, ...], tp_placement: Placement
) -> Iterator[tuple[tuple[MeshDim, ...], Placement]]:
    sharding = tuple(mesh_dim for mesh_dim in shard_over if graph.size(mesh_dim) > 1)
    for mesh_dim, size in graph.mesh:
        if size == 1:
            continue
        if mesh_dim is MeshDim.TP:
            yield (mesh_dim,), tp_placement
        elif mesh_dim not in sharding:
            yield (mesh_dim,), Replicate()
        elif mesh_dim is sharding[0]:
            yield sharding, Shard(0)
