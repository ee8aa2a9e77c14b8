"""One layer of each kind: its modules, their shards as boxes, and the collectives at their edges."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from planc.diff.side import Side
from planc.estimate.layout import ParameterLayout
from planc.estimate.result import Estimate
from planc.figures.figure import num_bytes
from planc.graph import ops
from planc.graph.text import summarise
from planc.record import record
from planc.report.html import Html, details, element, figure, markup, paragraph, table
from planc.show.layout import layout_rows
from planc.tables import format_shape, plural
from planc.vocab import MeshDim, PackedShard, Placement, Replicate, StridedShard, local_length

_LONGEST, _SHORTEST = 60.0, 8.0
_VISIBLE = 1.5
"""The least width of a shard in the picture: a shard of a thousandth is still there."""

Interval = tuple[float, float]
"""A start and a length, as fractions of a tensor dimension."""


def shard_picture(parameter: ParameterLayout, *, tp: int) -> Html:
    """Rows downwards, and columns across: the whole, the shard of tp rank 0, and rank 0's part of that."""
    if not parameter.shape:
        parameter = replace(parameter, shape=(1,), tp_shape=(1,), local_shape=(1,))
    rows, columns = _shown_dims(parameter)
    longest = max(parameter.shape[rows], 1 if columns is None else parameter.shape[columns])
    # Square roots keep a bias visible next to a matrix.
    height = _side(parameter.shape[rows] / longest)
    width = _SHORTEST if columns is None else _side(parameter.shape[columns] / longest)
    placement = dict(parameter.placements).get((MeshDim.TP,), Replicate())
    down = [*_intervals(parameter, placement, rows, tp=tp)]
    across = [(0.0, 1.0)] if columns is None else [*_intervals(parameter, placement, columns, tp=tp)]
    share = parameter.local_shape[0] / max(1, parameter.tp_shape[0]) if rows == 0 else 1.0
    own = [*_first(down, share)]
    boxes = [element("rect", width=width, height=height, class_="whole")]
    boxes += [_box(x, y, width, height, "of-tp") for y in down for x in across]
    boxes += [_box(x, y, width, height, "own") for y in own for x in across]
    return element(
        "svg",
        *boxes,
        viewBox=f"-1 -1 {_LONGEST + 2:g} {height + 2:g}",
        width=_LONGEST + 2,
        height=height + 2,
        class_="shard",
        aria_hidden="true",
    )


def _side(share: float) -> float:
    return max(_SHORTEST, _LONGEST * sqrt(share))


def _shown_dims(parameter: ParameterLayout) -> tuple[int, int | None]:
    """The tensor dimensions that are drawn: the first, and another one that tp shards, or else the second."""
    others = range(1, len(parameter.shape))
    sharded = [dim for dim in others if parameter.tp_shape[dim] != parameter.shape[dim]]
    return 0, sharded[0] if sharded else next(iter(others), None)


def _intervals(parameter: ParameterLayout, placement: Placement, dim: int, *, tp: int) -> Iterator[Interval]:
    """Yield the intervals of a dimension that tp rank 0 holds: a part of each tensor that it packs."""
    length = parameter.shape[dim] or 1
    if (
        isinstance(placement, StridedShard | PackedShard)
        and placement.tensor_dim % len(parameter.shape) == dim
    ):
        start = 0
        for width in placement.widths_of(length):
            yield start / length, local_length(width, parts=tp, index=0) / length
            start += width
    else:
        yield 0.0, parameter.tp_shape[dim] / length


def _first(intervals: list[Interval], share: float) -> Iterator[Interval]:
    """The first `share` of what intervals cover."""
    left = share * sum(length for _, length in intervals)
    for start, length in intervals:
        if left > 0:
            yield start, min(length, left)
        left -= length


def _box(x: Interval, y: Interval, width: float, height: float, kind: str) -> Html:
    return element(
        "rect",
        x=x[0] * width,
        y=y[0] * height,
        width=max(_VISIBLE, x[1] * width),
        height=max(_VISIBLE, y[1] * height),
        class_=kind,
    )


_LAYER = re.compile(r"^(.*?\.\d+)(?:\.|$)")
_NUMBER = re.compile(r"(?<=\.)\d+")


@record
class ModuleLayout:
    """A module by its name in its layer: the op that shards it over tp, and its parameters."""

    name: str
    op: ops.ShardTensorParallel | None
    parameters: tuple[ParameterLayout, ...]


@record
class LayerKind:
    """Layers that have the same modules with the same layout; `fqns` is empty for all modules outside."""

    fqns: tuple[str, ...]
    modules: tuple[ModuleLayout, ...]

    @property
    def name(self) -> str:
        return ", ".join(summarise(self.fqns)) or "outside of layers"


def layer_kinds(side: Side) -> tuple[LayerKind, ...]:
    """Every kind of layer, in the model's order, and last the modules that are outside of layers."""
    by_layer: dict[str, list[ModuleLayout]] = {}
    for module in _modules(side):
        layer = _layer_of(module.name)
        local = module.name.removeprefix(layer).removeprefix(".") or "(the layer itself)"
        by_layer.setdefault(layer, []).append(ModuleLayout(local, module.op, module.parameters))
    kinds: dict[object, list[str]] = {}
    for layer, modules in by_layer.items():
        kinds.setdefault((bool(layer), *map(_meaning, modules)), []).append(layer)
    ordered = sorted(kinds.values(), key=lambda layers: layers == [""])
    return tuple(
        LayerKind(tuple(filter(None, layers)), tuple(_folded(by_layer[layers[0]]))) for layers in ordered
    )


def _layer_of(fqn: str) -> str:
    """The layer that a module is in, or is; empty outside of layers."""
    match = _LAYER.match(fqn)
    return match[1] if match else ""


def _modules(side: Side) -> Iterator[ModuleLayout]:
    """Every module that owns parameters, or that tensor parallelism prepares."""
    layouts = side.layouts()
    if layouts is None or side.inventory is None:
        return
    parameters: dict[str, list[ParameterLayout]] = {}
    for parameter in layouts.values():
        parameters.setdefault(parameter.module, []).append(parameter)
    sharded = {fqn: op for op in side.ops(ops.ShardTensorParallel) for fqn in op.modules}
    for module in side.inventory.modules:
        if module.fqn in parameters or module.fqn in sharded:
            yield ModuleLayout(module.fqn, sharded.get(module.fqn), tuple(parameters.get(module.fqn, ())))


def _meaning(module: ModuleLayout) -> tuple[str, object, object]:
    """Return what distinguishes layers: all but their names."""
    op = module.op and (module.op.use, module.op.edges, module.op.rows)
    return module.name, op, tuple(map(_parameter_meaning, module.parameters))


def _parameter_meaning(parameter: ParameterLayout) -> object:
    shapes = parameter.shape, parameter.tp_shape, parameter.local_shape, parameter.last_shape
    return local_name(parameter), *shapes, parameter.placements, parameter.dtype


def local_name(parameter: ParameterLayout) -> str:
    """`weight`."""
    return parameter.fqn.removeprefix(parameter.module).removeprefix(".")


def _folded(modules: list[ModuleLayout]) -> Iterator[ModuleLayout]:
    """Modules of one layer with equal ones, such as its experts, as one."""
    groups: dict[object, list[ModuleLayout]] = {}
    for module in modules:
        family = _NUMBER.sub("", module.name)
        groups.setdefault((family, *_meaning(module)[1:]), []).append(module)
    for members in groups.values():
        names = ", ".join(summarise([member.name for member in members]))
        yield ModuleLayout(names, members[0].op, members[0].parameters)


def layers_section(side: Side, estimated: Estimate) -> Html:
    """A figure for each kind of layer, and the table of all parameters."""
    kinds = layer_kinds(side)
    figures = (_layer(kind, side, estimated, is_open=index == 0) for index, kind in enumerate(kinds))
    header, rows = layout_rows(tuple((side.layouts() or {}).values()))
    return markup(
        paragraph(
            "Each box is a parameter. The strong color is what rank 0 holds, the pale one the rest of its "
            "shard over tp. Frames are the collectives where values enter and leave a module."
        ),
        *figures,
        details("All parameters as a table", table(rows, header=header, caption="Parameters")),
    )


def _layer(kind: LayerKind, side: Side, estimated: Estimate, *, is_open: bool) -> Html:
    many = f", {plural(len(kind.fqns), 'layer')}" if kind.fqns else ""
    rows = (_module(module, side.graph.size(MeshDim.TP)) for module in kind.modules)
    treatments = map(paragraph, _treatments(kind, side, estimated))
    return details(f"{kind.name}{many}", *treatments, element("ul", *rows, class_="layer"), is_open=is_open)


def _module(module: ModuleLayout, tp: int) -> Html:
    op = module.op
    over = f" over {', '.join(op.over)}" if op else ""
    edges = [element("span", f"{edge}{over}", class_="edge") for edge in (op.edges if op else ())]
    return element(
        "li",
        element(
            "div",
            element("b", module.name),
            element("span", op.use.style if op else "", class_="style"),
            *edges,
        ),
        *(parameter_layout(parameter, tp=tp) for parameter in module.parameters),
    )


def parameter_layout(parameter: ParameterLayout, *, tp: int, label: str = "") -> Html:
    """The picture of a parameter, with its shape, placements, and rank 0's shard and bytes.

    `label` is what to call it, instead of its name.
    """
    placed = "; ".join(f"{', '.join(dims)}: {placement}" for dims, placement in parameter.placements)
    shapes = f"{format_shape(parameter.shape)} → {format_shape(parameter.local_shape)}"
    size = num_bytes(f"local_bytes.{parameter.fqn}", parameter.local_bytes)
    return element(
        "div",
        shard_picture(parameter, tp=tp),
        element(
            "div", f"{label or local_name(parameter)} {shapes}, ", figure(size), element("small", placed)
        ),
        class_="parameter",
    )


def _treatments(kind: LayerKind, side: Side, estimated: Estimate) -> Iterator[str]:
    """Yield the graph's other work on these layers: FSDP, context parallelism, recomputation, compilation."""
    layers = set(kind.fqns) or {""}
    for op in side.ops(ops.FullyShard):
        names = summarise(
            [fqn or "<root>" for group in op.groups for fqn in group if _layer_of(fqn) in layers]
        )
        if names:
            again = str(op.reshard_after_forward).lower()
            units = f"FSDP unit {', '.join(names)}, reshard_after_forward {again}"
            yield f"{units}: {_sent(estimated, cause=op.op)}"
    for experts in side.ops(ops.ShardExperts):
        if names := summarise([fqn for fqn in experts.modules if _layer_of(fqn) in layers]):
            yield f"experts {', '.join(names)}, on {experts.size} ranks: {_sent(estimated, cause=experts.op)}"
    for attention in side.ops(ops.AttachAttention):
        if kind.fqns and attention.over:
            yield f"attention {attention.kind}: {_sent(estimated, cause='attention')}"
    for how, modules in (
        *((_recomputed(op), op.modules) for op in side.ops(ops.CheckpointActivations)),
        *((f"compiled by {op.backend}", op.modules) for op in side.ops(ops.CompileModules)),
    ):
        if names := summarise([fqn for fqn in modules if _layer_of(fqn) in layers]):
            yield f"{how}: {', '.join(names)}"


def _recomputed(op: ops.CheckpointActivations) -> str:
    how = "from inputs in host memory" if op.mode == "offload" else f"({op.mode})"
    return f"recomputed in backward {how}"


def _sent(estimated: Estimate, *, cause: str) -> str:
    found = (collective for collective in estimated.collectives if collective.cause == cause)
    return (
        ", ".join(dict.fromkeys(f"{one.kind} over {', '.join(one.over)}" for one in found)) or "sends nothing"
    )
