"""The pictures: ranks at their coordinates, nodes, and shards as large as rank 0's, by own references."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from planc.api import check_plan
from planc.diff.side import side_of
from planc.estimate.layout import ParameterLayout
from planc.report.layers import layer_kinds, shard_picture
from planc.report.mesh import mesh_picture
from planc.vocab import DType, MeshDim, PackedShard, Placement, Replicate, Shard, StridedShard
from tests.plans import PLANS
from tests.report.reading import read

NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (1, 1, 2, 1, 2), (1, 1, 16, 1, 8), (2, 2, 2, 2, 2), (2, 4, 32, 16, 8)]
)
def test_ranks_are_drawn_at_their_coordinates(sizes: tuple[int, ...]) -> None:
    titles = read(mesh_picture(sizes, devices_per_node=None)).titles
    ranks = np.arange(np.prod(sizes)).reshape(sizes)
    drawn = {}
    for title in titles:
        rank, where = re.fullmatch(r"rank (\d+)(?:: (.*))?", title).groups()  # type: ignore[union-attr]
        at = dict(one.split() for one in where.split(", ")) if where else {}
        drawn[int(rank)] = int(ranks[tuple(int(at.get(name, 0)) for name in NAMES)])
    assert drawn and all(rank == found for rank, found in drawn.items())
    assert {0, int(np.prod(sizes)) - 1} <= set(drawn)
    if np.prod(sizes) <= 16:
        assert len(drawn) == np.prod(sizes)
    assert len(drawn) <= 512


def test_ranks_of_rank_0s_groups_are_marked() -> None:
    text = mesh_picture((1, 1, 2, 2, 2), devices_per_node=None)
    marked = re.findall(r'<title>rank (\d+):[^<]*</title><rect [^>]*class="cell (\w+)"', text)
    assert dict(marked) == {
        "0": "self", "1": "tp", "2": "cp", "4": "dp_shard",
        **dict.fromkeys("3567", "other"),
    }  # fmt: skip


@pytest.mark.parametrize("node", [1, 2, 3, 4, 8])
def test_heavy_lines_enclose_nodes(node: int) -> None:
    """4 x 2 ranks: the edges of all nodes, counted in sides of cells."""
    text = mesh_picture((1, 1, 4, 1, 2), devices_per_node=node)
    (path,) = re.findall(r'<path d="([^"]*)" class="node"', text)
    sides = 0
    for row, column in product(range(4), range(2)):
        own = (row * 2 + column) // node
        for down, across in ((0, 1), (0, -1), (1, 0), (-1, 0)):
            there = (row + down, column + across)
            is_inside = 0 <= there[0] < 4 and 0 <= there[1] < 2
            sides += not is_inside or (there[0] * 2 + there[1]) // node != own
    assert path.count("M") == sides


def rank_0(shape: tuple[int, ...], placement: Placement, tp: int, dp: int) -> np.ndarray:
    """Which elements rank 0 holds: chunks over tp, of each packed tensor, then rows of that over dp."""
    places = np.arange(np.prod(shape)).reshape(shape)
    match placement:
        case Shard(dim):
            places = np.array_split(places, [-(-shape[dim] // tp)], axis=dim)[0]
        case StridedShard(dim, parts):
            pieces = np.split(places, parts, axis=dim)
            places = np.concatenate([piece.take(range(piece.shape[dim] // tp), dim) for piece in pieces], dim)
        case PackedShard(dim, widths):
            pieces = np.split(places, np.cumsum(widths)[:-1], axis=dim)
            places = np.concatenate([piece.take(range(piece.shape[dim] // tp), dim) for piece in pieces], dim)
    places = places[: -(-places.shape[0] // dp)]
    held = np.zeros(int(np.prod(shape)), dtype=bool)
    held[places.ravel()] = True
    return held.reshape(shape)


def extents(held: np.ndarray) -> tuple[int, ...]:
    """The shape of what is held."""
    dims = range(held.ndim)
    return tuple(int(held.any(axis=tuple(other for other in dims if other != dim)).sum()) for dim in dims)


@pytest.mark.parametrize(
    ("shape", "placement"),
    [
        ((64, 32), Shard(0)),
        ((64, 32), Shard(1)),
        ((64, 32), Replicate()),
        ((64,), Replicate()),
        ((64, 32), StridedShard(0, 2)),
        ((64, 32), PackedShard(0, (32, 16, 16))),
        ((64, 32), PackedShard(1, (16, 8, 8))),
        ((8, 64, 32), Shard(1)),
    ],
)
def test_a_shard_covers_what_rank_0_holds(shape: tuple[int, ...], placement: Placement) -> None:
    tp, dp = 4, 2
    held = rank_0(shape, placement, tp, dp)
    on_tp = rank_0(shape, placement, tp, 1)
    local, tp_shape = extents(held), extents(on_tp)
    placements = (((MeshDim.DP_SHARD,), Shard(0)), ((MeshDim.TP,), placement))
    layout = ParameterLayout("x.weight", "x", shape, placements, tp_shape, local, local, DType.FLOAT32)
    picture = shard_picture(layout, tp=tp)
    assert np.array_equal(covered(picture, "own", held.shape), flat(held))
    assert np.array_equal(covered(picture, "of-tp", held.shape), flat(on_tp))


def flat(held: np.ndarray) -> np.ndarray:
    """Rows and columns of what is held, as a picture of two dimensions has them."""
    return held[:, None] if held.ndim == 1 else held.any(axis=tuple(range(2, held.ndim)))


def covered(picture: str, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """The elements that boxes of a kind cover."""
    boxes = [dict(re.findall(r'(\w+)="([^"]*)"', one)) for one in re.findall(r"<rect ([^/]*)/>", picture)]
    (whole,) = [one for one in boxes if one["class"] == "whole"]
    rows, columns = (*shape, 1)[:2]
    found = np.zeros((rows, columns), dtype=bool)
    for one in boxes:
        if one["class"] == kind:
            down, across = rows / float(whole["height"]), columns / float(whole["width"])
            top, left = float(one["y"]) * down, float(one["x"]) * across
            bottom, right = top + float(one["height"]) * down, left + float(one["width"]) * across
            found[round(top) : round(bottom), round(left) : round(right)] = True
    return found


def kinds_of(name: str) -> list[tuple[str, int]]:
    path = PLANS / f"{name}.plan"
    side = side_of(check_plan(path), name=name)
    assert side is not None
    return [(kind.name, len(kind.modules)) for kind in layer_kinds(side)]


def test_layers_of_one_layout_are_one_kind() -> None:
    assert kinds_of("llama-3.1-405b-128-gpus") == [("model.layers.{0..125}", 11), ("outside of layers", 3)]


def test_layers_of_other_modules_are_another_kind() -> None:
    """DeepSeek's first layer has a dense MLP, and the others experts."""
    kinds = [name for name, _ in kinds_of("deepseek-v2-lite")]
    assert kinds == ["model.layers.0", "model.layers.{1..26}", "outside of layers"]
