"""The bytes that a rank sends to compare replicas."""

from __future__ import annotations

from collections.abc import Iterator

from planc.estimate.layout import ParameterLayout
from planc.estimate.rank_work import RankWork
from planc.estimate.result import Collective, Comparison, Kind
from planc.graph.ops import CompareReplicas
from planc.vocab import MeshDim, Replicate

_DIGEST_BYTES = 16
"""A 64-bit digest and its complement."""
_FLAG_BYTES = 8


def comparison(work: RankWork) -> Comparison | None:
    """The collectives of one comparison; None if the graph has none."""
    op = next((op for op in work.graph.step if isinstance(op, CompareReplicas)), None)
    return None if op is None else Comparison(op.every_steps, tuple(_collectives(work, op)))


def _collectives(work: RankWork, op: CompareReplicas) -> Iterator[Collective]:
    """Digests along every mesh dim with copies, then whether any differ, over all ranks."""
    for mesh_dim in op.over:
        size = work.graph.size(mesh_dim)
        copies = sum(_is_copied(layout, mesh_dim) for layout in work.layouts.values())
        if mesh_dim is MeshDim.PP:
            size, copies = 2, len(work.tied_layouts)
        if copies and size > 1:
            num_bytes = copies * _DIGEST_BYTES
            yield Collective((mesh_dim,), size, Kind.ALL_REDUCE, op.name, 1, num_bytes)
    wide = tuple(mesh_dim for mesh_dim, size in work.graph.mesh if size > 1)
    if wide:
        yield Collective(wide, work.graph.world_size, Kind.ALL_REDUCE, op.name, 1, _FLAG_BYTES)


def _is_copied(layout: ParameterLayout, mesh_dim: MeshDim) -> bool:
    return all(placement == Replicate() for dims, placement in layout.placements if mesh_dim in dims)
