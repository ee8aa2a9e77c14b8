"""The verifier finds what is planted in a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planc.graph import ops
from planc.graph.artifact import ArtifactError, dump, graph_of, load
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.verify import verify
from planc.pipelining.order_text import order_text, parse_order
from planc.vocab import MeshDim
from tests.pipelining.tiny import pipelined
from tests.plans import PLANS, checked

Change = Callable[[Any], Any]


def _sound() -> Graph:
    graph = checked(PLANS / "launch-pp2-dp2.plan").graph
    assert graph is not None and verify(graph) == ()
    return graph


def _edit(kind: type[Op], change: Change) -> Callable[[Graph], Graph]:
    """A graph with its ops of a kind changed; None drops them."""

    def edit(graph: Graph) -> Graph:
        def changed(found: tuple[Any, ...]) -> Any:
            new = (change(op) if isinstance(op, kind) else op for op in found)
            return tuple(op for op in new if op is not None)

        return replace(graph, setup=changed(graph.setup), step=changed(graph.step))

    return edit


def _order(number: int, change: Callable[[str], str]) -> Callable[[Graph], Graph]:
    """A graph with one rank's order changed."""

    def edit(op: ops.Accumulate) -> ops.Accumulate:
        orders = list(op.orders)
        orders[number] = parse_order(change(order_text(orders[number])))
        assert tuple(orders) != op.orders
        return replace(op, orders=tuple(orders))

    return _edit(ops.Accumulate, edit)


def _stages(*stages: tuple[str, ...]) -> Callable[[Graph], Graph]:
    return _edit(ops.SplitPipeline, lambda op: replace(op, stages=stages))


def _layers(*numbers: int) -> tuple[str, ...]:
    return tuple(f"model.layers.{number}" for number in numbers)


def _body(change: Callable[[list[Any]], list[Any]]) -> Callable[[Graph], Graph]:
    return _edit(ops.Accumulate, lambda op: replace(op, body=tuple(change(list(op.body)))))


EMBEDDING, HEAD = ("model.embed_tokens",), ("model.norm", "lm_head")
MESSAGES = "needs a receive right before each forward and backward"

PLANTED: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "no split": (
        _edit(ops.SplitPipeline, lambda op: None),
        "needs pipeline.split 1 times and has it 0 times",
    ),
    "a parameter in no stage": (
        _stages(_layers(0, 1), (*_layers(2, 3), *HEAD)),
        "`model.embed_tokens.weight` is in 0 stages",
    ),
    "a parameter in two stages": (
        _stages((*EMBEDDING, *_layers(0, 1)), (*EMBEDDING, *_layers(2, 3), *HEAD)),
        "`model.embed_tokens.weight` is in 2 stages",
    ),
    "a unit in two stages": (
        _stages((*EMBEDDING, *_layers(0, 1), "model.norm"), (*_layers(2, 3), "lm_head")),
        "`model.norm` is in a unit with modules of other stages",
    ),
    "an unknown module on shards": (
        _edit(ops.SplitPipeline, lambda op: replace(op, on_shards=("model.layers", "model.norms"))),
        "`model.norms` is on shards of the sequence, and in no stage",
    ),
    "a parameter in no unit of a stage": (
        _edit(
            ops.FullyShard,
            lambda op: replace(op, groups=tuple(one for one in op.groups if one != EMBEDDING)),
        ),
        "`model.embed_tokens.weight` is in no unit of its stage",
    ),
    "layers in another order": (
        _stages((*EMBEDDING, *_layers(2, 3)), (*_layers(0, 1), *HEAD)),
        "stages do not follow the members of model.layers",
    ),
    "a stage without a layer": (_stages((*EMBEDDING, *_layers(0, 1, 2, 3)), HEAD), "a stage has no member"),
    "a head in the first stage": (
        _stages(("lm_head", *EMBEDDING, *_layers(0, 1)), (*_layers(2, 3), "model.norm")),
        "the last stage does not have lm_head",
    ),
    "three stages on two ranks": (
        _stages((*EMBEDDING, *_layers(0)), _layers(1), (*_layers(2, 3), *HEAD)),
        "3 stages are not a multiple of 2 ranks",
    ),
    "no size": (_edit(ops.SplitPipeline, lambda op: replace(op, shape=(0, 8, 8))), "of a positive size"),
    "one order": (
        _edit(ops.Accumulate, lambda op: replace(op, orders=op.orders[:1])),
        "has 1 orders for 2 ranks of pp",
    ),
    "an empty order": (_order(1, lambda text: ""), "its orders can't run: rank 1 has no actions"),
    "an action left out": (_order(0, lambda text: text.removesuffix(" 0B3")), "rank 0 lacks 0B3"),
    "a deadlock": (
        _order(1, lambda text: " ".join(["1F3", *(one for one in text.split() if one != "1F3")])),
        "its orders can't run",
    ),
    "too few sends": (
        _edit(ops.SplitPipeline, lambda op: replace(op, max_sends=0)),
        "ranks may hang with 0 sends under way, and don't with 1",
    ),
    "fewer micro-batches": (
        _edit(ops.Accumulate, lambda op: replace(op, times=3)),
        "for 4 micro-batches, not for 3",
    ),
    "no receive": (
        _body(lambda body: [op for op in body if not isinstance(op, ops.ReceiveHidden)]),
        MESSAGES,
    ),
    "activations sent as gradients": (
        _body(
            lambda body: [
                replace(op, what="gradients") if isinstance(op, ops.SendHidden) else op for op in body
            ]
        ),
        MESSAGES,
    ),
    "sent before they are there": (
        _body(lambda body: sorted(body, key=lambda op: not isinstance(op, ops.SendHidden))),
        MESSAGES,
    ),
}


@pytest.mark.parametrize(("plant", "text"), PLANTED.values(), ids=PLANTED)
def test_planted_violation_is_found(plant: Callable[[Graph], Graph], text: str) -> None:
    violations = verify(plant(_sound()))
    assert any(text in str(violation) for violation in violations), violations


def _tied(folder: Path) -> Graph:
    graph = checked(pipelined(folder, is_tied=True, more="guard {\n  replicas_every = 1 step\n}\n")).graph
    assert graph is not None and verify(graph) == ()
    return graph


def _ties(*ties: tuple[str, ...]) -> Callable[[Graph], Graph]:
    return _edit(ops.SplitPipeline, lambda op: replace(op, ties=ties))


def _last(graph: Graph) -> Graph:
    """With the sum of ties after the norm."""
    return replace(graph, step=tuple(sorted(graph.step, key=lambda op: isinstance(op, ops.SumTies))))


APART = "is tied, but not between the first and the last stage"
TIED: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "no sum": (_edit(ops.SumTies, lambda op: None), "needs grads.sum_ties 1 times and has it 0 times"),
    "nothing to sum": (_ties(), "needs grads.sum_ties 0 times and has it 1 times"),
    "summed after the norm": (_last, "writes synced_gradients after grads.clip has read it"),
    "summed over other ranks": (
        _edit(ops.SumTies, lambda op: replace(op, over=(MeshDim.TP,))),
        "grads.sum_ties: sums over pp",
    ),
    "not compared": (
        _edit(ops.CompareReplicas, lambda op: replace(op, over=(MeshDim.TP,))),
        "does not compare the weights that two stages have",
    ),
    "the head first": (_ties(("lm_head.weight", "model.embed_tokens.weight")), APART),
    "one stage": (_ties(("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight")), APART),
}


@pytest.mark.parametrize(("plant", "text"), TIED.values(), ids=TIED)
def test_a_tied_weight_is_summed_once_over_its_two_stages(
    plant: Callable[[Graph], Graph], text: str, tmp_path: Path
) -> None:
    violations = verify(plant(_tied(tmp_path)))
    assert any(text in str(violation) for violation in violations), violations


def _deferring(folder: Path, *, chunks: int = 1) -> Graph:
    path = pipelined(folder, schedule="zero_bubble")
    path.write_text(path.read_text().replace("train {", f"train {{\n  loss_chunks = {chunks}"))
    graph = checked(path).graph
    assert graph is not None and verify(graph) == ()
    return graph


def _deferred(*names: str) -> Callable[[Graph], Graph]:
    return _edit(ops.SplitPipeline, lambda op: replace(op, deferred=names))


DEFERRED: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "an order without the weights of a micro-batch": (
        _order(1, lambda text: text.replace(" 1W2", "")),
        "its orders can't run: rank 1 lacks 1W2",
    ),
    "weights before their backward": (
        _order(0, lambda text: text.replace("0B1 0W1", "0W1 0B1")),
        "its orders can't run: rank 0 has 0W1 before 0B1",
    ),
    "orders without weights": (
        _edit(
            ops.Accumulate,
            lambda op: replace(
                op,
                orders=(
                    parse_order("0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"),
                    parse_order("1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"),
                ),
            ),
        ),
        "pipeline.split: defers gradients of weights that no order has",
    ),
    "no op for the weights": (
        _body(lambda body: [op for op in body if not isinstance(op, ops.ComputeWeightGradients)]),
        "needs backward.weights 1 times, at the end of its body",
    ),
    "the op before the backward": (
        _body(lambda body: [*body[:-4], body[-1], *body[-4:-1]]),
        "needs backward.weights 1 times, at the end of its body",
    ),
    "a layer in no stage": (_deferred("model.layers.9.mlp.up_proj"), "is in 0 stages, not in one"),
}


@pytest.mark.parametrize(("plant", "text"), DEFERRED.values(), ids=DEFERRED)
def test_deferred_gradients_are_computed_once(
    plant: Callable[[Graph], Graph], text: str, tmp_path: Path
) -> None:
    violations = verify(plant(_deferring(tmp_path)))
    assert any(text in str(violation) for violation in violations), violations


def test_a_head_that_has_its_gradients_in_forward_defers_none(tmp_path: Path) -> None:
    graph = _deferring(tmp_path, chunks=2)
    violations = verify(_deferred("lm_head")(graph))
    assert any("`lm_head` has its gradients in forward" in str(one) for one in violations), violations


def test_a_graph_without_pp_has_no_pipeline() -> None:
    graph = checked(PLANS / "launch-fsdp4.plan").graph
    assert graph is not None
    (split,) = (op for op in _sound().setup if isinstance(op, ops.SplitPipeline))
    place = [isinstance(op, ops.AttachAttention) for op in graph.setup].index(True) + 1
    planted = replace(graph, setup=(*graph.setup[:place], split, *graph.setup[place:]))
    assert "graph: needs pipeline.split 0 times and has it 1 times" in map(str, verify(planted))
    (loop,) = (op for op in _sound().step if isinstance(op, ops.Accumulate))
    planted = _edit(ops.Accumulate, lambda op: replace(op, orders=loop.orders))(graph)
    assert "accumulate: has orders, but the mesh has one rank of pp" in map(str, verify(planted))
    weights = ops.ComputeWeightGradients(over=())
    planted = _edit(ops.Accumulate, lambda op: replace(op, body=(*op.body, weights)))(graph)
    assert "accumulate: has backward.weights, but the mesh has one rank of pp" in map(str, verify(planted))
    assert any(
        MESSAGES in str(one)
        for one in verify(_edit(ops.Accumulate, lambda op: replace(op, body=loop.body))(graph))
    )


def test_a_file_with_text_that_is_not_an_order_is_refused() -> None:
    text = dump(_sound(), sources=(), overrides=())
    assert graph_of(load(text)) == _sound()
    planted = text.replace('"0F0 ', '"0F0 x ', 1)
    assert planted != text
    with pytest.raises(ArtifactError, match=r"accumulate\.orders\.0: .*`x` is not a stage"):
        load(planted)
