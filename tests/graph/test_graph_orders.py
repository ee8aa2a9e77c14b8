"""A graph whose pp ranks would hang or mix up micro batches is not valid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planc.graph.graph import Graph
from planc.graph.ops import Accumulate, SplitPipeline
from planc.graph.verify import verify
from tests.pipelining.tiny import pipelined
from tests.plans import checked


def graph_in(folder: Path) -> Graph:
    found = checked(pipelined(folder, micro_batches=2)).graph
    assert found is not None
    return found


def with_orders(graph: Graph, *orders: str) -> Graph:
    step = (replace(op, orders=orders) if isinstance(op, Accumulate) else op for op in graph.step)
    return replace(graph, step=tuple(step))


def test_the_orders_of_a_plan_are_legal(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    assert verify(graph) == ()
    assert verify(with_orders(graph, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")) == ()


@pytest.mark.parametrize(
    ("orders", "text"),
    [
        (("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), "deadlock: rank 0 waits at 0B0 for 1B0"),
        (("0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1"), "rank 0 sends the activations of 0F1 to rank 1"),
        (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1"), "rank 1 lacks 1B1"),
        (("0F0 0B0", "1F0 1B0"), "its orders have more or fewer than 2 micro batches"),
        (("0F0 0F1 0B0 0B1",), "needs an order for each pp rank"),
        ((), "needs an order for each pp rank"),
        (("0F0 0F1 0B0 B1", "1F0 1B0 1F1 1B1"), "`B1` is not a stage"),
    ],
)
def test_other_orders_are_violations(tmp_path: Path, orders: tuple[str, ...], text: str) -> None:
    (found,) = verify(with_orders(graph_in(tmp_path), *orders))
    assert found.op == "accumulate"
    assert text in found.text


def test_orders_need_a_split(tmp_path: Path) -> None:
    graph = graph_in(tmp_path)
    whole = replace(graph, setup=tuple(op for op in graph.setup if not isinstance(op, SplitPipeline)))
    assert "needs an order for each pp rank of a model that is split" in {one.text for one in verify(whole)}
