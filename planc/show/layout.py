"""The layout of every parameter, as a table and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planc.estimate.layout import ParameterLayout
from planc.figures.figure import num_bytes
from planc.graph.ops import BuildModel
from planc.graph.text import fold, summarise
from planc.tables import format_bytes, format_shape, render_table
from planc.vocab import MESH_DIMS, DType, ExpertDim, GroupDim, MeshDim

_INNER = MESH_DIMS.index(MeshDim.DP_SHARD) + 1
_ORDER: tuple[GroupDim, ...] = (*MESH_DIMS[:_INNER], *ExpertDim, *MESH_DIMS[_INNER:])
"""Experts of different ranks are on factors of mesh dims."""


def layout_text(parameters: tuple[ParameterLayout, ...]) -> str:
    """A table with repeated layers folded, and the bytes of rank 0 and of the whole model."""
    header, rows = layout_rows(parameters)
    table = render_table(rows, header=header, right=(len(header) - 2,))
    local = num_bytes("memory.parameters", sum(parameter.local_bytes for parameter in parameters))
    total = num_bytes("parameters_bytes", sum(parameter.total_bytes for parameter in parameters))
    return f"{table}\nparameters: {local.text} on rank 0, {total.text} in total\n"


def layout_rows(
    parameters: tuple[ParameterLayout, ...],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header and the rows of the table."""
    groups: dict[tuple[Any, ...], list[ParameterLayout]] = {}
    for parameter in parameters:
        shapes = (parameter.shape, parameter.local_shape, parameter.last_shape)
        cells = (*shapes, parameter.placements, parameter.stored_as)
        groups.setdefault(cells, []).append(parameter)
    dims = sorted(
        dict.fromkeys(mesh_dims for one in parameters for mesh_dims, _ in one.placements),
        key=lambda mesh_dims: _ORDER.index(mesh_dims[0]),
    )
    rows: dict[str, tuple[str, ...]] = {}
    for members in groups.values():
        for folded, names in fold([member.fqn for member in members]).items():
            rows[names[0]] = _row(folded, members[0], dims, count=len(names))
    header = ("parameter", "shape", *map(",".join, dims), "local, rank 0", "dtype", "bytes per rank", "")
    return header, [rows[parameter.fqn] for parameter in parameters if parameter.fqn in rows]


def other_dtypes_text(build: BuildModel) -> str:
    """Parameters and buffers with another dtype than the model's, one line for each reason and dtype."""
    lines = []
    for dtype in dict.fromkeys(dtype for _, dtype in build.own_dtypes):
        names = summarise([name for name, own in build.own_dtypes if own is dtype])
        lines.append(f"built in {dtype}, not {build.dtype}: {', '.join(names)}\n")
    if build.kept_in_float32:
        names = summarise(build.kept_in_float32)
        lines.append(f"kept in {DType.FLOAT32}, not {build.dtype}: {', '.join(names)}\n")
    return "".join(lines)


def _row(
    folded: str, parameter: ParameterLayout, dims: Sequence[tuple[GroupDim, ...]], *, count: int
) -> tuple[str, ...]:
    placements = dict(parameter.placements)
    is_uneven = parameter.last_shape != parameter.local_shape
    return (
        folded,
        format_shape(parameter.shape),
        *(str(placements.get(mesh_dims, "")) for mesh_dims in dims),
        format_shape(parameter.local_shape),
        parameter.stored_as,
        format_bytes(parameter.local_bytes * count),
        f"uneven: {format_shape(parameter.last_shape)} on the last rank" if is_uneven else "",
    )


def layout_data(parameters: tuple[ParameterLayout, ...]) -> list[dict[str, Any]]:
    """Every parameter as plain data, nothing folded."""
    return [
        {
            "parameter": parameter.fqn,
            "shape": list(parameter.shape),
            "dtype": parameter.stored_as,
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
