"""What each rank holds of every parameter: tensor parallelism first, then FSDP on what that leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, FullyShard, ShardTensorParallel
from planc.graph.text import fold
from planc.inventory.schema import Inventory
from planc.show.table import format_bytes, format_shape, render_table
from planc.vocab import DType, MeshDim, Placement, Replicate, Shard, local_shape

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """One parameter's placements and shapes.

    `placements` lists the mesh dims of more than one rank; FSDP's dims stand together, since it divides over
    all of them at once. `tp_shape` is what tensor parallelism leaves on its first rank, `local_shape` what
    rank 0 keeps of that, `last_shape` what the last rank keeps: smaller where the division is uneven.
    """

    fqn: str
    module: str
    shape: Shape
    placements: tuple[tuple[tuple[MeshDim, ...], Placement], ...]
    tp_shape: Shape
    local_shape: Shape
    last_shape: Shape
    dtype: DType

    @property
    def local_bytes(self) -> int:
        """Bytes on rank 0, which holds the most: chunks shrink towards the last rank."""
        return prod(self.local_shape) * self.dtype.size_bytes

    @property
    def total_bytes(self) -> int:
        return prod(self.shape) * self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class _Division:
    """What the graph's ops say of all parameters."""

    tensor_parallel: Mapping[tuple[str, str], tuple[MeshDim, Placement]]
    """By module and local parameter name."""
    shard_over: tuple[MeshDim, ...]


def layouts(graph: Graph, inventory: Inventory) -> tuple[ParameterLayout, ...]:
    """Every parameter of the model in its order, tied ones once.

    The arithmetic is DTensor's and FSDP2's: `fully_shard` chunks tensor dim 0 of the tensor that tensor
    parallelism left on the rank, not of the whole one.
    """
    division = _division(graph)
    dtype = next(op.dtype for op in graph.setup if isinstance(op, BuildModel))
    return tuple(
        _layout(graph, division, module=module.fqn, name=parameter.name, shape=parameter.shape, dtype=dtype)
        for _, module, parameter in inventory.parameters()
    )


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
    graph: Graph, division: _Division, *, module: str, name: str, shape: Shape, dtype: DType
) -> ParameterLayout:
    tp_dim, tp_placement = division.tensor_parallel.get((module, name), (MeshDim.TP, Replicate()))
    tp_size = graph.size(tp_dim)
    fsdp_size = prod(graph.size(mesh_dim) for mesh_dim in division.shard_over)
    first = local_shape(shape, tp_placement, parts=tp_size, index=0)
    last = local_shape(shape, tp_placement, parts=tp_size, index=tp_size - 1)
    return ParameterLayout(
        fqn=f"{module}.{name}" if module else name,
        module=module,
        shape=shape,
        placements=tuple(_placements(graph, division, tp_placement)),
        tp_shape=first,
        local_shape=local_shape(first, Shard(0), parts=fsdp_size, index=0),
        last_shape=local_shape(last, Shard(0), parts=fsdp_size, index=fsdp_size - 1),
        dtype=dtype,
    )


def _placements(
    graph: Graph, division: _Division, tp_placement: Placement
) -> Iterator[tuple[tuple[MeshDim, ...], Placement]]:
    sharding = tuple(mesh_dim for mesh_dim in division.shard_over if graph.size(mesh_dim) > 1)
    for mesh_dim, size in graph.mesh:
        if size == 1:
            continue
        if mesh_dim is MeshDim.TP:
            yield (mesh_dim,), tp_placement
        elif mesh_dim not in sharding:
            yield (mesh_dim,), Replicate()
        elif mesh_dim is sharding[0]:
            yield sharding, Shard(0)


def layout_text(parameters: tuple[ParameterLayout, ...]) -> str:
    """A table with repeated layers folded, and the bytes of rank 0 and of the whole model."""
    groups: dict[tuple[Any, ...], list[ParameterLayout]] = {}
    for parameter in parameters:
        cells = (parameter.shape, parameter.placements, parameter.local_shape, parameter.last_shape)
        groups.setdefault(cells, []).append(parameter)
    rows: dict[str, tuple[str, ...]] = {}
    for members in groups.values():
        for folded, names in fold([member.fqn for member in members]).items():
            rows[names[0]] = _row(folded, members[0], count=len(names))
    columns = [",".join(mesh_dims) for mesh_dims, _ in parameters[0].placements] if parameters else []
    header = ("parameter", "shape", *columns, "local, rank 0", "dtype", "bytes per rank", "")
    ordered = [rows[parameter.fqn] for parameter in parameters if parameter.fqn in rows]
    table = render_table(ordered, header=header, right=(len(header) - 2,))
    local = sum(parameter.local_bytes for parameter in parameters)
    total = sum(parameter.total_bytes for parameter in parameters)
    return f"{table}\nparameters: {format_bytes(local)} on rank 0, {format_bytes(total)} in all\n"


def _row(folded: str, parameter: ParameterLayout, *, count: int) -> tuple[str, ...]:
    is_uneven = parameter.last_shape != parameter.local_shape
    return (
        folded,
        format_shape(parameter.shape),
        *(str(placement) for _, placement in parameter.placements),
        format_shape(parameter.local_shape),
        str(parameter.dtype),
        format_bytes(parameter.local_bytes * count),
        f"uneven: {format_shape(parameter.last_shape)} on the last rank" if is_uneven else "",
    )


def layout_data(parameters: tuple[ParameterLayout, ...]) -> list[dict[str, Any]]:
    """Every parameter as plain data, nothing folded."""
    return [
        {
            "parameter": parameter.fqn,
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype),
            "placements": [
                {"mesh_dims": list(mesh_dims), "placement": str(placement)}
                for mesh_dims, placement in parameter.placements
            ],
            "local_shape": list(parameter.local_shape),
            "last_shape": list(parameter.last_shape),
            "local_bytes": parameter.local_bytes,
            "total_bytes": parameter.total_bytes,
        }
        for parameter in parameters
    ]
