"""A small model is of the kind of the large one: heads, windows, layers, experts, positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planc.api import check_plan, check_source
from planc.graph import ops
from planc.graph.graph import Graph
from planc.inventory.small_config import Demands, heads_of, shrink_config
from planc.source import SourceFile
from planc.verify.rewrite import resumed_elsewhere
from planc.verify.shrink import Shrunk, shrink
from planc.verify.twin import CannotShrink
from planc.vocab import DType, MeshDim
from tests.plans import PLANS

DEMANDS = Demands(
    kept=(0, 1),
    num_layers=4,
    tp=1,
    cp=1,
    divides_heads=False,
    num_shards=1,
    sequence_length=8192,
    short_length=64,
)
LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def small(extra: dict[str, Any], demands: Demands = DEMANDS, **aliases: str) -> dict[str, Any]:
    return shrink_config({**LLAMA, **extra}, demands, aliases=aliases)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "cp", "ulysses", "expected"),
    [
        (32, 8, 1, 1, False, (8, 2)),
        (32, 8, 8, 1, False, (8, 2)),
        (64, 8, 8, 1, False, (16, 2)),
        (32, 32, 8, 1, False, (4, 4)),
        (8, 1, 2, 1, False, (8, 1)),
        (32, 8, 2, 2, True, (16, 4)),
        (32, 8, 8, 2, True, (8, 2)),
    ],
)
def test_heads_keep_their_groups_and_divide_as_they_did(
    heads: int, kv_heads: int, tp: int, cp: int, ulysses: bool, expected: tuple[int, int]
) -> None:
    demands = replace(DEMANDS, tp=tp, cp=cp, divides_heads=ulysses)
    assert heads_of(heads, kv_heads, demands) == expected


@pytest.mark.parametrize(
    ("rows", "tp", "shards", "expected"),
    [(128256, 8, 8, 264), (128256, 8, 512, 262), (257, 2, 4, 261), (32001, 1, 4, 261)],
)
def test_a_vocabulary_divides_where_it_did(rows: int, tp: int, shards: int, expected: int) -> None:
    demands = replace(DEMANDS, tp=tp, num_shards=shards)
    assert small({"vocab_size": rows}, demands)["vocab_size"] == expected


@pytest.mark.parametrize(("window", "expected"), [(512, 4), (8191, 63), (8192, 64), (32768, 256), (1, 2)])
def test_a_window_hides_the_share_of_the_sequence_that_it_did(window: int, expected: int) -> None:
    assert small({"sliding_window": window})["sliding_window"] == expected


def test_positions_are_in_proportion_to_the_sequence() -> None:
    found = small({"rope_parameters": {"factor": 8.0, "original_max_position_embeddings": 8192}})
    assert found["max_position_embeddings"] == 1024
    assert found["rope_parameters"] == {"factor": 8.0, "original_max_position_embeddings": 64}


def test_what_is_said_layer_by_layer_is_said_of_the_kept_layers() -> None:
    types = ["sliding_attention", "sliding_attention", "full_attention", "full_attention"]
    demands = replace(DEMANDS, kept=(0, 2))
    found = small({"layer_types": types, "first_k_dense_replace": 1, "mlp_only_layers": [2, 3]}, demands)
    assert found["layer_types"] == ["sliding_attention", "full_attention"]
    assert (found["first_k_dense_replace"], found["mlp_only_layers"]) == (1, [1])
    assert found["num_hidden_layers"] == 2


def test_every_second_layer_of_experts_stays_one() -> None:
    found = small({"decoder_sparse_step": 2, "mlp_only_layers": []})
    assert (found["decoder_sparse_step"], found["mlp_only_layers"]) == (1, [0])


def test_experts_are_few_and_fewer_are_chosen() -> None:
    found = small({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768})
    assert (found["num_experts"], found["num_experts_per_tok"]) == (4, 2)


def test_fields_go_by_the_names_that_a_class_has_for_them() -> None:
    config = {"n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}
    aliases = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    found = shrink_config(config, DEMANDS, aliases=aliases)
    assert (found["n_embd"], found["n_head"], found["n_layer"]) == (32, 2, 2)


def test_what_chance_decides_is_off() -> None:
    found = small({"attention_dropout": 0.1, "resid_pdrop": 0.1, "router_jitter_noise": 0.01})
    assert {found[name] for name in ("attention_dropout", "resid_pdrop", "router_jitter_noise")} == {0.0}


def shrunk(name: str, folder: Path) -> tuple[Shrunk, Graph]:
    checked = check_plan(PLANS / f"{name}.plan")
    assert checked.bound is not None and checked.graph is not None
    return shrink(checked.bound, checked.graph, base=PLANS, folder=folder, dtype=DType.FLOAT32), checked.graph


def test_a_layer_of_each_kind_stays(tmp_path: Path) -> None:
    found, _ = shrunk("deepseek-v2-lite", tmp_path)
    assert (found.kept, found.num_layers) == ((0, 1), 27)


def test_layers_that_a_plan_treats_differently_stay(tmp_path: Path) -> None:
    found, _ = shrunk("llama-2-13b-64-gpus", tmp_path)
    (wrapped,) = (op for op in found.graph.setup if isinstance(op, ops.CheckpointActivations))
    assert wrapped.modules == ("model.layers.0",)


def test_a_layer_keeps_what_it_kept(tmp_path: Path) -> None:
    text = (PLANS / "quickstart.plan").read_text(encoding="utf-8")
    rule = '"model.layers.*" -> none'
    assert rule in text
    source = SourceFile("selective.plan", text.replace(rule, '"model.layers.*" -> selective'))
    checked = check_source(source, base=PLANS)
    assert checked.bound is not None and checked.graph is not None
    found = shrink(checked.bound, checked.graph, base=PLANS, folder=tmp_path, dtype=DType.FLOAT32)
    (wrapped,) = (op for op in found.graph.setup if isinstance(op, ops.CheckpointActivations))
    assert (wrapped.mode, wrapped.modules) == ("selective", ("model.layers.0", "model.layers.1"))


def test_every_mesh_dim_of_several_ranks_has_two(tmp_path: Path) -> None:
    found, whole = shrunk("llama-3.1-405b-512-gpus", tmp_path)
    assert {dim: min(size, 2) for dim, size in whole.mesh} == dict(found.graph.mesh)
    assert [type(op) for op in found.graph.step] == [type(op) for op in whole.step]


def test_a_run_goes_on_with_the_same_batches_on_fewer_ranks(tmp_path: Path) -> None:
    found, _ = shrunk("quickstart", tmp_path)
    resumed = resumed_elsewhere(found.graph)
    assert (resumed.size(MeshDim.DP_SHARD), resumed.size(MeshDim.TP)) == (1, 2)
    times = [
        next(op.times for op in graph.step if isinstance(op, ops.Accumulate))
        for graph in (found.graph, resumed)
    ]
    assert times == [2, 4]


def test_experts_are_on_no_more_ranks_than_a_smaller_mesh_has(tmp_path: Path) -> None:
    """Eight ranks of dp_shard 4 x cp 4 share experts, then all four of the small mesh, then both of cp."""
    text = (PLANS / "qwen3-30b-a3b-experts.plan").read_text(encoding="utf-8")
    text = text.replace("on dp_shard", "on dp_shard, cp").replace("dp_shard = 16", "dp_shard = 4\n  cp = 4")
    text = text.replace("accumulation == 1", "accumulation == 4") + "context_parallel on cp {\n}\n"
    checked = check_source(SourceFile("experts.plan", text), base=PLANS)
    assert checked.bound is not None and checked.graph is not None, checked.diagnostics
    few = shrink(checked.bound, checked.graph, base=PLANS, folder=tmp_path, dtype=DType.FLOAT32).graph
    sizes = [graph.experts and graph.experts.size for graph in (checked.graph, few, resumed_elsewhere(few))]
    assert sizes == [8, 4, 2]


def test_a_model_of_unknown_sizes_is_refused_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planc.verify.twin._MAX_PARAMETERS", 1000)
    monkeypatch.setattr("planc.verify.twin._LARGE", 300)
    with pytest.raises(CannotShrink, match="planc does not know how to shrink max_position_embeddings = "):
        shrunk("quickstart", tmp_path)
