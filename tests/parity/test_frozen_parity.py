"""Plans that freeze parameters, on every kind of mesh, against one process that trains the others alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from planc.graph.op import Op
from planc.graph.ops import MaterialiseWeights
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.weights.freezing import require_frozen
from planc.verify.pool import RankError
from tests.dist.pool import run_ranks
from tests.parity.cases import (
    ALL_8,
    CP2_TP2,
    PP2_DP2,
    TP2_DP2,
    TP2_REPLICATE2,
    Case,
    compile_case,
)
from tests.parity.compare import measure
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import train_reference

LOWEST = ("model.embed_tokens", "model.layers.0")
"""Backward ends in the second layer."""
AMONG = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.input_layernorm",
    "model.layers.1.mlp",
    "model.layers.1.self_attn.o_proj",
    "model.norm",
    "lm_head",
)
"""Gradients pass through frozen layers, norms and the head. A frozen norm of a sharded sequence has no
gradient to sum over tp."""
HEAD = ("model",)
"""Nothing but the head is trained."""

QUICK = (
    Case("TP2·DP2", "lowest", TP2_DP2, frozen=LOWEST),
    Case("DP2·CP2·TP2", "among", ALL_8, frozen=AMONG),
)
SLOW = (
    Case("1", "among", frozen=AMONG),
    Case("TP2·DP2", "among", TP2_DP2, frozen=AMONG),
    Case("TP2·DP2", "head", TP2_DP2, frozen=HEAD),
    Case("TP2·DP2", "dp_replicate, lowest", TP2_REPLICATE2, frozen=LOWEST),
    Case("DP4", "whole replicas, among", {"dp_replicate": 4}, replicas="whole", frozen=AMONG),
    Case("TP2·DP2", "whole replicas, lowest", TP2_REPLICATE2, replicas="whole", frozen=LOWEST),
    Case("TP4", "qwen3 q/k norms, among", {"tp": 4}, model="qwen3", frozen=AMONG),
    Case("CP2·TP2", "allgather, lowest", CP2_TP2, rotate="allgather", frozen=LOWEST),
    Case("CP2·TP2", "ulysses, among", CP2_TP2, rotate="ulysses", balance="none", frozen=AMONG),
    Case("TP2·DP2", "recompute, among", TP2_DP2, recomputes=True, frozen=AMONG),
    Case("TP2·DP2", "selective, lowest", TP2_DP2, recomputes=True, recomputation="selective", frozen=LOWEST),
    Case("DP4", "offload, among", {"dp_shard": 4}, recomputes=True, recomputation="offload", frozen=AMONG),
    Case("TP2·DP2", "accumulate 4, lowest", TP2_DP2, micro_batch=1, frozen=LOWEST),
    Case("DP4", "3 units ahead, lowest", {"dp_shard": 4}, settings=("fsdp.prefetch=3",), frozen=LOWEST),
    Case("DP4", "loss in chunks, head", {"dp_shard": 4}, settings=("train.loss_chunks=4",), frozen=HEAD),
    Case("DP4", "loss in chunks, among", {"dp_shard": 4}, settings=("train.loss_chunks=4",), frozen=AMONG),
    Case("TP2·DP2", "compiled, among", TP2_DP2, is_compiled=True, frozen=AMONG),
    Case(
        "DP4",
        "compiled, recompute, lowest",
        {"dp_shard": 4},
        recomputes=True,
        is_compiled=True,
        frozen=LOWEST,
    ),
    Case("CP2·TP2", "compiled allgather, among", CP2_TP2, rotate="allgather", is_compiled=True, frozen=AMONG),
    Case("TP2·DP2", "tied, frozen", TP2_DP2, model="llama-tied", frozen=("model.embed_tokens",)),
    Case(
        "TP2·DP2",
        "experts, frozen",
        TP2_DP2,
        model="qwen3-moe",
        tensor_parallel="auto",
        frozen=("model.layers.1.mlp.experts", "model.layers.0"),
    ),
    Case(
        "TP2·DP2",
        "router frozen",
        TP2_DP2,
        model="qwen3-moe",
        tensor_parallel="auto",
        frozen=("model.layers.1.mlp.gate",),
    ),
    Case(
        "PP2·DP2",
        "tied, frozen",
        PP2_DP2,
        model="llama-deep-tied",
        micro_batch=1,
        frozen=("model.embed_tokens",),
    ),
    Case("PP4", "among", {"pp": 4}, model="llama-deep", micro_batch=1, frozen=AMONG),
    Case(
        "PP2·DP2",
        "interleaved, among",
        PP2_DP2,
        model="llama-deep",
        micro_batch=1,
        schedule="interleaved(stages_per_rank = 2)",
        frozen=AMONG,
    ),
    Case(
        "PP2·DP2",
        "zero bubble, lowest",
        PP2_DP2,
        model="llama-deep",
        micro_batch=1,
        schedule="zero_bubble",
        frozen=LOWEST,
    ),
)


def assert_trains_as_one_process(case: Case, *, workspace: Path) -> None:
    reference = train_reference(case.model, workspace=workspace, frozen=case.frozen)
    graph = compile_case(replace(case, weights="pretrained"), workspace=workspace)
    with TemporaryDirectory(prefix="planc-frozen-") as folder:
        records: list[Record] = run_ranks(
            train_rank, case.world_size, Task(graph, workspace, Path(folder)), init=False
        )
    row = measure(case, records, reference, workspace=workspace)
    assert row.problems == ()
    kept = [name for name in reference.initial if name not in reference.gradients]
    assert kept
    first = records[0]
    assert first.gradients.keys() == reference.gradients.keys()
    assert all(torch.equal(first.final[name], reference.initial[name]) for name in kept)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_mesh_trains_what_is_not_frozen_as_one_process(case: Case, workspace: Path) -> None:
    assert_trains_as_one_process(case, workspace=workspace)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_every_mesh_trains_what_is_not_frozen_as_one_process(case: Case, workspace: Path) -> None:
    assert_trains_as_one_process(case, workspace=workspace)


def test_a_parameter_that_an_op_thaws_or_freezes_ends_the_run(workspace: Path) -> None:
    graph = compile_case(Case("1", frozen=LOWEST), workspace=workspace)
    op = next(one for one in graph.setup if isinstance(one, MaterialiseWeights))
    inner = nn.ModuleDict({"embed_tokens": nn.Embedding(4, 4), "norm": nn.LayerNorm(4)})
    model = nn.ModuleDict({"model": inner})
    text = f"after {op.name}, model.embed_tokens.weight would be trained, and the graph freezes it"
    with pytest.raises(RunError, match=text):
        require_frozen(graph, op, model)
    model.requires_grad_(False)
    with pytest.raises(RunError, match=r"model.norm.weight, model.norm.bias would be frozen"):
        require_frozen(graph, op, model)


def thawed(state: State, op: Op, position: Position) -> None:
    """What an op does that puts a parameter in the place of a frozen one."""
    if isinstance(op, MaterialiseWeights):
        state[nn.Module].get_parameter("model.embed_tokens.weight").requires_grad_(True)


def test_a_run_ends_before_its_first_step_if_an_op_thaws_a_parameter(workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(Case("DP2", "", {"dp_shard": 2}, frozen=LOWEST), workspace=workspace)
    task = Task(graph, workspace, tmp_path / "run", before_op=thawed)
    with pytest.raises(RankError, match=r"model\.embed_tokens\.weight would be trained"):
        run_ranks(train_rank, 2, task, init=False)
