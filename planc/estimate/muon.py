"""Muon's sends, memory and FLOPs in a step, on rank 0, which owns the first matrix of a round.

The arithmetic is that of planc/runtime/torch/training/muon.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from planc.estimate.layout import ParameterLayout
from planc.estimate.rank_work import RankWork
from planc.estimate.result import Collective, Kind
from planc.graph.ops import MatrixGroup
from planc.optimizers import muon
from planc.record import record
from planc.vocab import DType, GroupDim


@record
class Round:
    """Matrices that are orthogonalized at the same time, each on its owner; `over` are what shards them."""

    over: tuple[tuple[GroupDim, ...], ...]
    members: tuple[ParameterLayout, ...]
    parts: tuple[tuple[int, ...], ...]
    """The shapes of the matrices that rank 0 iterates on."""


def rounds(work: RankWork) -> Iterator[Round]:
    """The rounds of a step; none without Muon."""
    groups = [group for group in work.optimizer.groups if isinstance(group, MatrixGroup)]
    widths = {fqn: turn for group in groups for fqn, turn in group.widths}
    trained = work.with_gradients
    by_dims: dict[tuple[tuple[GroupDim, ...], ...], dict[str, int]] = {}
    for fqn in (fqn for group in groups for fqn in group.parameters if fqn in trained):
        by_dims.setdefault(work.dividing(trained[fqn]), {})[fqn] = prod(trained[fqn].shape)
    for over, sizes in by_dims.items():
        num_owners = prod(_size(work, dims) for dims in over)
        for names in muon.rounds(sizes, num_owners=num_owners):
            members = tuple(trained[fqn] for fqn in names)
            yield Round(over, members, muon.part_shapes(members[0].shape, widths.get(names[0], ())))


def exchanged(work: RankWork) -> Iterator[Collective]:
    """Shards on their way to the owners, and back, over one mesh dim after the other."""
    element = _element(work)
    for turn in rounds(work):
        sizes = [_size(work, dims) for dims in turn.over]
        for depth, dims in enumerate(turn.over):
            # Those that the ranks in this one's place along earlier dims own, with what these have gathered.
            num_coming, num_own = prod(sizes[depth:]), prod(sizes[depth + 1 :])
            there = _held(turn, depth, num_coming)
            back = _held(turn, depth + 1, num_own)
            for num_elements in (there, back):
                num_bytes = num_elements * element
                yield Collective(dims, sizes[depth], Kind.ALL_TO_ALL, "optimizer.step", 1, num_bytes)


def _held(turn: Round, depth: int, number: int) -> int:
    """Elements of the first members that rank 0 holds once it has gathered so many mesh dims."""
    return sum(_num_elements(layout, depth, len(turn.over)) for layout in turn.members[:number])


def _num_elements(layout: ParameterLayout, depth: int, num_levels: int) -> int:
    if depth == 0:
        return prod(layout.local_shape)
    return prod(layout.shape if depth == num_levels else layout.tp_shape)


def round_bytes(work: RankWork) -> int:
    """The most that a round makes and frees."""
    made = (
        muon.round_elements(sum(prod(layout.local_shape) for layout in turn.members), turn.parts)
        for turn in rounds(work)
    )
    return _element(work) * max(made, default=0)


def products(work: RankWork) -> Mapping[tuple[int, int, int], int]:
    """Count the products [rows, inner] x [inner, outer] that rank 0 computes, by (rows, inner, outer)."""
    settings = work.optimizer.settings
    counted: dict[tuple[int, int, int], int] = {}
    if not isinstance(settings, muon.Muon):
        return counted
    for shape in (shape for turn in rounds(work) for shape in turn.parts):
        for product in muon.products(shape):
            counted[product] = counted.get(product, 0) + settings.ns_steps * prod(shape[:-2])
    return counted


def dtype_of(work: RankWork) -> DType | None:
    """The dtype of the iterations; None without Muon."""
    settings = work.optimizer.settings
    return DType(settings.ns_dtype) if isinstance(settings, muon.Muon) else None


def _element(work: RankWork) -> int:
    dtype = dtype_of(work)
    return dtype.size_bytes if dtype else 0


def _size(work: RankWork, mesh_dims: Sequence[GroupDim]) -> int:
    return prod(work.graph.size(mesh_dim) for mesh_dim in mesh_dims)
