"""A second opinion on the layouts of experts, routers and balance losses, of types that planc lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planc.graph.graph import Graph
from planc.graph.ops import (
    Accumulate,
    ClipGradients,
    FullyShard,
    MoveBiases,
    ShardTensorParallel,
    SumRoutes,
    SyncGradients,
)
from planc.styles.edges import At
from planc.vocab import TOKEN_DIMS, ExpertDim, MeshDim

pytest.importorskip("spmd_types", reason="spmd_types is not installed: it is in planc[test]")

from spmd_types import SpmdTypeError

from tests.dist.test_expert_parallel import BLOCKS, MESHES, PLAN
from tests.plans import checked, write_plan
from tests.soundness.typed_experts import EXPERTS, LAYER, NORM, ROUTER, assert_sound

Change = Callable[[Any], Any]


def graph_of(folder: Path, mesh: str, *settings: str, balance: str = "", model: str = "qwen3-moe") -> Graph:
    blocks = (*BLOCKS.get(mesh.partition(", ")[2], ()), ('hf = "model"', f'hf = "models/tiny-{model}"'))
    edits = (*blocks, ("weights = pretrained", "weights = random"), ("float64", "float32"))
    edits += (("data {", f"balance {{\n  {balance}\n}}\n\ndata {{"),) if balance else ()
    graph = checked(write_plan(folder, text=PLAN, edits=edits), *MESHES[mesh], *settings).graph
    assert graph is not None
    return graph


MODELS = ("deepseek-v3", "qwen3-moe")


@pytest.mark.parametrize("mesh", [one for one in MESHES if "pp" not in one and "compiled" not in one])
def test_layouts_of_experts_agree(mesh: str, tmp_path: Path) -> None:
    has_parts = mesh in ("ep 2, over a part of cp", "ep 4, over more than cp", "ep 4, over cp and tp")
    # Ranks have parts of sequences, which DeepSeek's attention can't.
    for model in MODELS[1:] if has_parts else MODELS:
        assert_sound(graph_of(tmp_path, mesh, model=model))


@pytest.mark.parametrize(
    "mesh", ["ep 2", "ep 2, cp", "ep 2, replicas", "ep 2 of 4, tp", "ep 4, over tp", "ep 4, over cp and tp"]
)
def test_counts_are_of_whole_sets_of_tokens(mesh: str, tmp_path: Path) -> None:
    """Of a sequence's loss ranks of cp have parts; of a step's, all ranks with different tokens."""
    loss = "loss = switch(coefficient = 0.1, over = {})"
    apart = (MeshDim.TP,) if mesh.endswith("tp") and "over" in mesh else ()
    assert_sound(graph_of(tmp_path, mesh, balance=loss.format("sequence")), shared=(MeshDim.CP, *apart))
    # A step of one micro-batch.
    graph = graph_of(tmp_path, mesh, balance="loss = bias(update = 0.01)", model="deepseek-v3")
    assert_sound(graph)
    tokens = f"train.tokens_per_step={16 * graph.dp_size}"
    graph = graph_of(tmp_path, mesh, tokens, balance=loss.format("step"))
    assert_sound(graph, shared=(*TOKEN_DIMS, *apart))


def changed(graph: Graph, kind: type[Any], change: Change) -> Graph:
    """The graph with another op of a kind, or with none where it is None."""

    def edited(ops: tuple[Any, ...]) -> tuple[Any, ...]:
        bodies = (replace(op, body=edited(op.body)) if isinstance(op, Accumulate) else op for op in ops)
        changes = (change(op) if isinstance(op, kind) else op for op in bodies)
        return tuple(op for op in changes if op is not None)

    wrong = replace(graph, setup=edited(graph.setup), step=edited(graph.step))
    assert wrong != graph, "nothing to change"
    return wrong


def over(*dims: MeshDim) -> Change:
    return lambda op: replace(op, over=dims)


def shards_over(module: str, *dims: MeshDim | ExpertDim) -> Change:
    return lambda op: replace(op, shard_over=dims) if (module,) in op.groups else op


def replicates(op: FullyShard) -> FullyShard:
    return op if (EXPERTS,) in op.groups else replace(op, replicate_over=())


def without_edge(module: str, at: At) -> Change:
    def change(op: ShardTensorParallel) -> ShardTensorParallel:
        edges = tuple(edge for edge in op.edges if edge.at is not at)
        return replace(op, edges=edges) if module in op.modules else op

    return change


def without(module: str) -> Change:
    """A style's op without a module."""
    return lambda op: replace(op, modules=tuple(one for one in op.modules if one != module))


TP, SEQUENCES, LOSS = "ep 2 of 4, tp", "ep 2, tp of sequences", "loss = switch(coefficient = 0.1)"
SENT = "ep 4, over tp"
SUMS, OWN = "tensor has .*P, expected .*I", "tensor has .*V, expected .*I"
BIAS, NONLINEAR = "loss = bias(update = 0.01)", "Partial .* cannot propagate through non-linear ops"
FAULTS: dict[str, tuple[str, str, type[Any], Change, str]] = {
    "a router is summed as experts are": (
        *("ep 2 of 4", "", FullyShard, shards_over(LAYER, ExpertDim.EFSDP)),
        SUMS,
    ),
    "experts are summed as routers are": (
        *("ep 2 of 4", "", FullyShard, shards_over(EXPERTS, MeshDim.DP_SHARD)),
        "ranks of ep of dp_shard sum what is V",
    ),
    "a router is not summed over replicas": (
        "ep 2, replicas",
        "",
        FullyShard,
        replicates,
        SUMS,
    ),
    "a router is not summed over cp": (
        *("ep 2, cp", "", FullyShard, shards_over(LAYER, MeshDim.DP_SHARD)),
        SUMS,
    ),
    "the gradient of tokens is not summed over tp": (
        *(TP, "", ShardTensorParallel, without_edge(EXPERTS, At.INPUT)),
        r"Invariant .* cannot mix .* \[I, ",
    ),
    "the gradient of a router is not summed over tp": (
        *(TP, "", ShardTensorParallel, without_edge(EXPERTS, At.ROUTING_WEIGHTS)),
        r"Invariant .* cannot mix .* \[P, I\]|Invariant .* cannot mix .* \[I, ",
    ),
    "outputs of experts are not summed over tp": (
        *(TP, "", ShardTensorParallel, without_edge(EXPERTS, At.OUTPUT)),
        "requires all operands to be Partial",
    ),
    "a norm of parts of sequences is not summed": (
        *(SEQUENCES, "", SyncGradients, over()),
        SUMS,
    ),
    "a norm of parts of sequences counts as whole": (
        *(SEQUENCES, "", ShardTensorParallel, without(NORM)),
        r"Invariant .* cannot mix .* \[V, I\]",
    ),
    "a router of shards of sequences is not summed": (
        *(SENT, "", SyncGradients, over()),
        SUMS,
    ),
    "a router of shards of sequences counts as whole": (
        *(SENT, "", ShardTensorParallel, without(ROUTER)),
        r"Invariant .* cannot mix .* \[V, I\]",
    ),
    "experts on ranks of tp are summed over dp_shard alone": (
        *("ep 2, over tp", "", FullyShard, shards_over(EXPERTS, MeshDim.CP)),
        SUMS,
    ),
    "the global norm leaves out experts on ranks of tp": (
        *(SENT, "", ClipGradients, over(MeshDim.DP_SHARD)),
        OWN,
    ),
    "a balance loss is of the counts of shards": (SENT, LOSS, SumRoutes, over(), NONLINEAR),
    "biases move by the counts of shards": (SENT, BIAS, MoveBiases, over(MeshDim.DP_SHARD), NONLINEAR),
    "the global norm leaves out experts of other ranks": (
        "ep 2",
        "",
        ClipGradients,
        over(),
        OWN,
    ),
    "the global norm leaves out features": (
        *(TP, "", ClipGradients, over(MeshDim.DP_SHARD)),
        OWN,
    ),
    "a balance loss is of local counts": ("ep 2, cp", LOSS, SumRoutes, over(), NONLINEAR),
    "a balance loss counts several sequences as one": (
        *("ep 2, cp", LOSS, SumRoutes, over(MeshDim.DP_SHARD, MeshDim.CP)),
        "ranks of ep of dp_shard sum what is V",
    ),
    "biases move by local counts": ("ep 2", BIAS, MoveBiases, over(), NONLINEAR),
    "biases move by the counts of some ranks": (
        *("ep 2, replicas", BIAS, MoveBiases, over(MeshDim.DP_SHARD)),
        NONLINEAR,
    ),
}
"""A mesh, a balance, the op that is changed and how, and what the refusal names."""


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_layouts_are_refused(fault: str, tmp_path: Path) -> None:
    mesh, balance, kind, change, message = FAULTS[fault]
    graph = graph_of(tmp_path, mesh, balance=balance, model="deepseek-v3" if balance == BIAS else "qwen3-moe")
    with pytest.raises(SpmdTypeError, match=message):
        shared = (MeshDim.CP, *([MeshDim.TP] if mesh == SENT else []))
        assert_sound(changed(graph, kind, change), shared=shared if balance == LOSS else ())
