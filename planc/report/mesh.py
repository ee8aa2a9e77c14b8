"""The mesh as a picture: ranks in a grid, the groups of rank 0, and the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from planc.record import record
from planc.report.html import Html, details, element, markup, paragraph, scrolling, table
from planc.show.mesh import DIM_COLUMNS, coordinates, dim_row, stride
from planc.vocab import MESH_DIMS, MeshDim

_LIMITS = (8, 8, 3, 3, 3)
"""The most places that are drawn along each mesh dim, innermost first: across, down, and of such blocks."""
_WIDTH, _HEIGHT, _GAP = 46, 22, 12


@record
class _Axis:
    """A mesh dim of more than one rank, and the coordinates that are drawn; None is a gap."""

    mesh_dim: MeshDim
    stride: int
    drawn: tuple[int | None, ...]


@record
class _Cell:
    """A place in the picture. `rank` is None in a gap; `moved` are the mesh dims where it is not at 0."""

    left: int
    top: int
    rank: int | None
    moved: tuple[MeshDim, ...]


def mesh_picture(sizes: Sequence[int], *, devices_per_node: int | None) -> Html:
    """The grid, its legend, and the table of mesh dims."""
    axes = _axes(sizes)
    caption = _caption(axes, devices_per_node)
    rows = [dim_row(mesh_dim, sizes) for mesh_dim in MESH_DIMS]
    return element(
        "figure",
        element("figcaption", caption),
        _patterns(),
        scrolling(_grid(axes, sizes, devices_per_node), label=caption),
        paragraph(*_legend(axes), kind="legend"),
        details("As a table", table(rows, header=DIM_COLUMNS, caption="Mesh dims")),
    )


def _axes(sizes: Sequence[int]) -> list[_Axis]:
    """The mesh dims that are drawn, innermost first."""
    dims = [(mesh_dim, size) for mesh_dim, size in zip(MESH_DIMS, sizes, strict=True) if size > 1]
    return [
        _Axis(mesh_dim, stride(mesh_dim, sizes), _drawn(size, limit))
        for (mesh_dim, size), limit in zip(reversed(dims), _LIMITS, strict=False)
    ]


def _drawn(size: int, limit: int) -> tuple[int | None, ...]:
    return tuple(range(size)) if size <= limit else (*range(limit - 2), None, size - 1)


def _caption(axes: list[_Axis], devices_per_node: int | None) -> str:
    where = ("across", "down", "in blocks across", "in blocks down", "in groups of blocks down")
    texts = [f"{axis.mesh_dim} {place}" for axis, place in zip(axes, where, strict=False)]
    node = f"; heavy lines enclose nodes of {devices_per_node} devices" if devices_per_node else ""
    return f"Ranks: {', '.join(texts) or 'only one'}{node}"


def _legend(axes: list[_Axis]) -> Iterator[Html]:
    kinds = [
        ("rank 0", "self"),
        *((f"with rank 0 over {axis.mesh_dim}", str(axis.mesh_dim)) for axis in axes),
    ]
    for text, kind in kinds:
        box = element("rect", x=1, y=1, width=14, height=14, class_=f"cell {kind}")
        yield element("span", element("svg", box, width=16, height=16, aria_hidden="true"), f" {text}")


def _grid(axes: list[_Axis], sizes: Sequence[int], node: int | None) -> Html:
    blocks = [*_blocks(axes)]
    cells = [cell for block in blocks for cell in block.values()]
    lines = "".join(_outline(block, node) for block in blocks) if node else ""
    width = max(cell.left for cell in cells) + _WIDTH
    height = max(cell.top for cell in cells) + _HEIGHT
    drawn = [*(_drawn_cell(cell, sizes) for cell in cells), element("path", d=lines, class_="node")]
    width, height = width + 4, height + 4
    box = f"-2 -2 {width} {height}"
    return element("svg", *drawn, viewBox=box, width=width, height=height, class_="mesh", aria_hidden="true")


def _blocks(axes: list[_Axis]) -> Iterator[dict[tuple[int, int], _Cell]]:
    """Blocks of the two innermost mesh dims: their cells by column and row. A gap has one cell."""
    drawn = [*(axis.drawn for axis in axes), *[(0,)] * (len(_LIMITS) - len(axes))]
    width, height = len(drawn[0]) * _WIDTH + _GAP, len(drawn[1]) * _HEIGHT + _GAP
    top = 0
    for group, down in product(drawn[4], drawn[3]):
        left = 0
        for across in drawn[2]:
            outer = (across, down, group)
            if None in outer:
                yield {(0, 0): _Cell(left, top, None, ())}
            else:
                yield {
                    (x, y): _cell(axes, (zero, one, *outer), left=left + x * _WIDTH, top=top + y * _HEIGHT)
                    for (y, one), (x, zero) in product(enumerate(drawn[1]), enumerate(drawn[0]))
                }
            left += _WIDTH if None in outer else width
        top += _HEIGHT + _GAP if down is None or group is None else height


def _cell(axes: list[_Axis], place: tuple[int | None, ...], *, left: int, top: int) -> _Cell:
    if None in place:
        return _Cell(left, top, None, ())
    found = [(axis, at or 0) for axis, at in zip(axes, place, strict=False)]
    rank = sum(at * axis.stride for axis, at in found)
    return _Cell(left, top, rank, tuple(axis.mesh_dim for axis, at in found if at))


def _drawn_cell(cell: _Cell, sizes: Sequence[int]) -> Html:
    middle, base = cell.left + _WIDTH / 2, cell.top + 15
    if cell.rank is None:
        return element("text", "…", x=middle, y=base)
    kind = "self" if not cell.moved else str(cell.moved[0]) if len(cell.moved) == 1 else "other"
    places = zip(MESH_DIMS, coordinates(cell.rank, sizes), sizes, strict=True)
    where = ", ".join(f"{mesh_dim} {at}" for mesh_dim, at, size in places if size > 1)
    return element(
        "g",
        element("title", f"rank {cell.rank}{f': {where}' if where else ''}"),
        element(
            "rect",
            x=cell.left + 2,
            y=cell.top + 2,
            width=_WIDTH - 4,
            height=_HEIGHT - 4,
            class_=f"cell {kind}",
        ),
        element("text", str(cell.rank), x=middle, y=base, class_=f"on-{kind}"),
    )


def _outline(block: dict[tuple[int, int], _Cell], node: int) -> str:
    """The path of the edges between cells of different nodes, and around the block."""

    def node_at(place: tuple[int, int]) -> int | None:
        cell = block.get(place)
        return None if cell is None or cell.rank is None else cell.rank // node

    path: list[str] = []
    for (x, y), cell in block.items():
        own = node_at((x, y))
        if own is None:
            continue
        left, top = cell.left, cell.top
        sides = (
            ((x - 1, y), f"M{left} {top}v{_HEIGHT}"),
            ((x + 1, y), f"M{left + _WIDTH} {top}v{_HEIGHT}"),
            ((x, y - 1), f"M{left} {top}h{_WIDTH}"),
            ((x, y + 1), f"M{left} {top + _HEIGHT}h{_WIDTH}"),
        )
        path.extend(line for neighbor, line in sides if node_at(neighbor) != own)
    return "".join(path)


def _patterns() -> Html:
    """Hatches that tell the groups apart in black and white."""
    hatches = {
        "tp": "M0 4h8",
        "cp": "M4 0v8",
        "dp_shard": "M0 8L8 0M-2 2L2 -2M6 10L10 6",
        "dp_replicate": "M0 0L8 8M-2 6L2 10M6 -2L10 2",
        "pp": "M0 4h8M4 0v8",
    }
    patterns = (
        element(
            "pattern",
            element("path", d=path),
            id=f"hatch-{name}",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
        )
        for name, path in hatches.items()
    )
    return element(
        "svg", element("defs", markup(*patterns)), width=0, height=0, class_="patterns", aria_hidden="true"
    )
