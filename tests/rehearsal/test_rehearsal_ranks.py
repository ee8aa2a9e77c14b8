"""Which ranks are rehearsed, and which groups a rank is in."""

from __future__ import annotations

from planc.graph.graph import Graph
from planc.runtime.ranks.groups import groups_of
from planc.runtime.rehearsal.rehearse import measured_rank, rehearsed_ranks
from planc.vocab import MeshDim


def mesh(pp: int = 1, dp_replicate: int = 1, dp_shard: int = 1, cp: int = 1, tp: int = 1) -> Graph:
    sizes = zip(MeshDim, (pp, dp_replicate, dp_shard, cp, tp), strict=True)
    return Graph("mesh", tuple(sizes), num_steps=1, setup=(), step=(), save=())


def test_one_rank_is_the_first_and_the_last() -> None:
    assert rehearsed_ranks(mesh(), {}) == (0,)


def test_even_shards_need_the_first_and_the_last_rank() -> None:
    assert rehearsed_ranks(mesh(dp_shard=4, tp=2), {MeshDim.DP_SHARD: (64, 256)}) == (0, 7)


def test_an_uneven_shard_adds_where_chunks_become_smaller() -> None:
    # Chunks of 257 over 8: seven of 33, then 26.
    assert rehearsed_ranks(mesh(dp_shard=8), {MeshDim.DP_SHARD: (257,)}) == (0, 7)
    # Chunks of 9 over 8: four of 2, one of 1, none, none, none.
    assert rehearsed_ranks(mesh(dp_shard=8), {MeshDim.DP_SHARD: (9,)}) == (0, 4, 5, 7)


def test_uneven_places_are_ranks_of_the_whole_mesh() -> None:
    assert rehearsed_ranks(mesh(dp_shard=8, tp=2), {MeshDim.DP_SHARD: (9,)}) == (0, 8, 10, 14, 15)


def test_every_rank_of_a_pipeline_has_layers_of_its_own() -> None:
    assert rehearsed_ranks(mesh(pp=4, tp=2), {MeshDim.TP: (64,)}) == (0, 2, 4, 6, 7)


def test_over_cp_the_last_rank_is_measured_of_each_stage() -> None:
    """It has the most keys before its queries."""
    both = mesh(pp=2, dp_shard=2, cp=4, tp=2)
    assert [measured_rank(both, stage=stage) for stage in (0, 1)] == [6, 22]
    assert {6, 22} <= {*rehearsed_ranks(both, {})}


def test_groups_of_rank_0_are_known_by_their_ranks() -> None:
    assert groups_of(mesh(dp_shard=2, tp=2), rank=0) == {
        (0,): (),
        (0, 2): (MeshDim.DP_SHARD,),
        (0, 1): (MeshDim.TP,),
        (0, 1, 2, 3): (MeshDim.DP_SHARD, MeshDim.TP),
    }


def test_groups_of_another_rank_hold_that_rank() -> None:
    assert groups_of(mesh(dp_shard=2, cp=1, tp=2), rank=3) == {
        (3,): (),
        (1, 3): (MeshDim.DP_SHARD,),
        (2, 3): (MeshDim.TP,),
        (0, 1, 2, 3): (MeshDim.DP_SHARD, MeshDim.TP),
    }
