"""The mesh dims that a block names after `on`."""

from __future__ import annotations

from collections.abc import Mapping

from planc.diagnostics import Applicability, Fix
from planc.diagnostics.suggest import closest
from planc.plan import codes
from planc.plan.blocks import Shape
from planc.plan.foreign_help import foreign_help, meant_mesh_dim
from planc.plan.scalars import listed
from planc.plan.scope import Scope
from planc.syntax import ast
from planc.vocab import MeshDim

_OTHER_MESH_DIMS: Mapping[str, MeshDim] = {
    "model": MeshDim.TP,
    **dict.fromkeys(("data", "fsdp", "zero", "dp_shard_cp"), MeshDim.DP_SHARD),
    **dict.fromkeys(("sequence", "ring"), MeshDim.CP),
}
"""Words of other tools for a mesh dim that mean something else as keys."""


def mesh_dims(block: ast.Block, shape: Shape, scope: Scope) -> tuple[MeshDim, ...]:
    """The mesh dims after `on`."""
    wanted = " or ".join(f"`{one}`" for one in shape.on)
    if shape.on and not block.on:
        text = f"`{block.kind.text}` must name its mesh dims"
        scope.report(
            codes.MISSING, block.kind.span, text, help=f"write `{block.kind.text} on {shape.on[0]} {{`"
        )
    dims: list[MeshDim] = []
    for name in block.on:
        if not shape.on:
            text, help = f"`{block.kind.text}` does not take mesh dims", "remove `on` and what follows it"
            scope.report(codes.MISPLACED, name.span, text, help=help)
        elif name.text not in tuple(MeshDim):
            text = f"the mesh has no dim `{name.text}`"
            help, fix = _meant_mesh_dim(block, name, shape)
            if closest(name.text, shape.on) is None:
                scope.report(codes.UNKNOWN_MESH_DIM, name.span, text, help=help, fix=fix)
            else:
                scope.unknown(codes.UNKNOWN_MESH_DIM, name, tuple(shape.on), text=text)
        elif name.text not in shape.on:
            text = f"`{block.kind.text}` works only on {wanted}"
            help, fix = _meant_mesh_dim(block, name, shape)
            help, fix = (way, None) if (way := _other_way(block, name)) else (help, fix)
            scope.report(codes.UNKNOWN_MESH_DIM, name.span, text, help=help, fix=fix)
        elif name.text in dims:
            once = ", ".join(dict.fromkeys(one.text for one in block.on))
            help = f"write `{block.kind.text} on {once}`"
            scope.report(codes.DUPLICATE, name.span, f"`{name.text}` is listed twice", help=help)
        else:
            dims.append(MeshDim(name.text))
    return tuple(sorted(dims, key=list(MeshDim).index))


def _meant_mesh_dim(block: ast.Block, name: ast.Name, shape: Shape) -> tuple[str, Fix | None]:
    """Return what to write for a mesh dim that a block does not work on, and a fix if it is clear."""
    kind = block.kind.text
    other = _OTHER_MESH_DIMS.get(name.text) or meant_mesh_dim(name.text)
    meant = other if other in shape.on else None
    if meant is None and len(shape.on) == 1:
        (meant,) = shape.on
    if other is None and (absent := foreign_help(name.text)):
        # The dims of the mesh do not help here: the block works on some of them.
        return (
            f"{absent.partition('; ')[0]}; `{kind}` works on {listed(f'`{dim}`' for dim in shape.on)}",
            None,
        )
    if meant is None and any(other.text in shape.on for other in block.on):
        return f"remove `{name.text}`", None
    if meant is None:
        return f"write {listed(f'`{kind} on {dim} {{`' for dim in shape.on)}", None
    # Two of them would be the same dim listed twice.
    is_there = any(other.text == meant for other in block.on)
    fix = None if is_there else Fix(name.span, str(meant), Applicability.UNSAFE)
    return f"write `{kind} on {meant} {{`", fix


def _other_way(block: ast.Block, name: ast.Name) -> str | None:
    """Return how a block uses a mesh dim that it does not name after `on`; None if it does not use it."""
    match block.kind.text, name.text:
        case "fsdp", MeshDim.DP_REPLICATE:
            return "write `fsdp on dp_shard {`, and inside it `replicate_on = dp_replicate`"
        case _:
            return None
