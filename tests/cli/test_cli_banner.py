"""What a run says before it runs."""

from __future__ import annotations

from pathlib import Path

from planc.cli.running.banner import banner
from planc.graph.graph import Graph
from planc.runtime.process import Launch
from tests.plans import PLANS, QUICKSTART, checked


def said(graph: Graph, launch: Launch) -> list[str]:
    return banner(graph, launch, device="cpu", run_folder=Path("runs/x"), overrides=()).splitlines()


def graph_of(path: Path) -> Graph:
    found = checked(path).graph
    assert found is not None
    return found


def test_it_says_where_ranks_meet_and_the_place_of_each() -> None:
    launch = Launch(0, 4, 0, address="10.0.0.7", port=29500, local_world_size=2)
    lines = said(graph_of(QUICKSTART), launch)
    assert lines[2] == "  rendezvous 10.0.0.7:29500, 2 on this machine"
    table = [line.split() for line in lines[3:8]]
    assert table == [
        ["rank", "dp_shard", "tp"],
        ["0", "0", "0"],
        ["1", "0", "1"],
        ["2", "1", "0"],
        ["3", "1", "1"],
    ]


def test_one_rank_meets_nobody() -> None:
    graph = graph_of(PLANS / "launch-one-process.plan")
    assert [line.split()[0] for line in said(graph, Launch())] == ["planc", "mesh", "layout", "run"]


def test_large_meshes_have_no_table() -> None:
    graph = graph_of(PLANS / "llama-3.1-405b-512-gpus.plan")
    launch = Launch(0, graph.world_size, 0, address="head", port=29500)
    lines = said(graph, launch)
    assert "  rendezvous head:29500" in lines
    assert len(lines) < 10
