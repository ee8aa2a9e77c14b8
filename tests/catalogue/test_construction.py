"""Faults that cannot be written, or that lowering takes care of."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import BuildModel, BuildOptimizer, ClipGradients, ComputeLoss, FullyShard, OpenData
from planc.runtime.data.order import SampleOrder, rank_positions
from planc.source import SourceFile
from planc.vocab import MeshDim, Shard, local_shape
from tests.plans import FULL, PLANS, TINY, canonical_plans, checked

HEAD = '"lm_head" -> colwise(input = Shard(1), output = Shard(-1))'


def compiled(text: str) -> Graph:
    found = check_source(SourceFile("example.plan", text), base=PLANS)
    assert found.graph is not None, [one.code.code for one in found.diagnostics]
    return found.graph


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_the_order_of_mesh_dims_in_a_plan_means_nothing() -> None:
    reversed_dims = edited(FULL, "fsdp on dp_shard, cp", "fsdp on cp, dp_shard")
    mesh = edited(reversed_dims, "  dp_shard = 2\n  tp = 2\n", "  tp = 2\n  dp_shard = 2\n")
    assert plan_hash(compiled(mesh)) == plan_hash(compiled(FULL))


def test_sharding_over_no_ranks_leaves_no_trace() -> None:
    graph = compiled(edited(TINY, "= 2\n\nmodel", "= 1\n\nmodel"))
    assert not [op for op in graph.setup if isinstance(op, FullyShard)]


@pytest.mark.parametrize(
    ("output", "vocab_over"), [("Shard(-1)", (MeshDim.TP,)), ("Replicate()", ())], ids=["divided", "whole"]
)
def test_the_loss_follows_the_layout_of_the_head(output: str, vocab_over: tuple[MeshDim, ...]) -> None:
    graph = compiled(edited(FULL, HEAD, HEAD.replace("Shard(-1)", output)))
    assert [op.vocab_over for op in graph.ops() if isinstance(op, ComputeLoss)] == [vocab_over]


@pytest.mark.parametrize("parts", [2, 3, 8, 64])
def test_shards_of_a_vocabulary_hold_its_rows_and_no_padding(parts: int) -> None:
    shards = [local_shape((257, 64), Shard(0), parts=parts, index=index) for index in range(parts)]
    assert sum(rows for rows, _ in shards) == 257


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_the_root_unit_takes_what_no_rule_names(path: Path) -> None:
    found = checked(path)
    assert found.graph is not None and found.plan is not None
    units = [op for op in found.graph.setup if isinstance(op, FullyShard)]
    mesh = found.plan.mesh
    has_ranks = mesh.dp_replicate * mesh.dp_shard * mesh.cp > 1
    # A pipeline's embedding and head are units before it: no rank has both.
    roots = [op.groups if mesh.pp == 1 else op.groups[-1:] for op in units[-1:]]
    assert roots == ([(("",),)] if has_ranks and found.plan.fsdp else [])


def test_every_parameter_is_sharded_where_fsdp_has_ranks() -> None:
    inventory = checked(PLANS / "quickstart.plan").inventory
    assert inventory is not None
    share = inventory.num_parameters / 8
    # Rank 0 holds the most; shards of uneven tensors may cost a little more than an eighth.
    expectation = f"expect {{\n  parameters_per_rank <= {int(1.02 * share)}\n}}\n"
    text = edited(TINY, "= 2\n\nmodel", "= 8\n\nmodel").replace("  tp = 2\n", "")
    start, end = text.index("tensor_parallel on"), text.index("fsdp on")
    assert compiled(text[:start] + text[end:] + expectation).size(MeshDim.DP_SHARD) == 8


@pytest.mark.parametrize("dp_size", [1, 4, 8])
def test_one_sequence_is_enough_for_any_number_of_ranks(dp_size: int) -> None:
    order = SampleOrder(1, 42)
    for rank in range(dp_size):
        positions = rank_positions(
            0, global_batch=2 * dp_size, micro_batch=2, dp_size=dp_size, dp_rank=rank, micro_step=0
        )
        assert order.sample_ids(positions.start, count=len(positions)).tolist() == [0, 0]


def test_what_a_plan_says_is_what_its_graph_does() -> None:
    graph = compiled(FULL)
    ops = {type(op): op for op in graph.ops()}
    model, data, optimizer = ops[BuildModel], ops[OpenData], ops[BuildOptimizer]
    clip = ops[ClipGradients]
    assert isinstance(model, BuildModel) and isinstance(data, OpenData)
    assert isinstance(optimizer, BuildOptimizer) and isinstance(clip, ClipGradients)
    assert (dict(graph.mesh)[MeshDim.TP], graph.num_steps, model.dtype) == (2, 60, "float32")
    assert (data.sequence_length, data.micro_batch, data.shuffle_seed, data.global_batch) == (256, 4, 42, 16)
    assert (optimizer.lr, optimizer.settings.betas, clip.max_norm) == (4e-3, (0.9, 0.95), 1.0)
