"""Ranks count a step's labels together only where the plan does not tell their number."""

from __future__ import annotations

import pytest

from planc.graph.graph import Graph
from planc.graph.ops import NextBatch, OpenData
from planc.vocab import MeshDim
from tests.plans import PLANS, checked


def graph_of(plan: str, *settings: str) -> Graph:
    graph = checked(PLANS / plan, *settings).graph
    assert graph is not None
    return graph


def batch_of(graph: Graph) -> NextBatch:
    return next(op for op in graph.step if isinstance(op, NextBatch))


def test_where_every_token_is_a_label_none_is_counted() -> None:
    graph = graph_of("launch-dp4.plan")
    data = next(op for op in graph.setup if isinstance(op, OpenData))
    assert data.packing == "attend"
    assert batch_of(graph).count_over == ()
    assert batch_of(graph).is_every_token


@pytest.mark.parametrize("packing", ["isolate", "none"])
def test_labels_are_counted_where_some_tokens_are_none(packing: str) -> None:
    found = batch_of(graph_of("launch-dp4.plan", f"data.packing = {packing}"))
    assert (found.count_over, found.is_every_token) == ((MeshDim.DP_REPLICATE,), False)


def test_answers_in_chats_are_counted() -> None:
    assert not batch_of(graph_of("qwen3-0.6b-chat.plan")).is_every_token
