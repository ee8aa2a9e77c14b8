"""FLOPs against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planc.api import check_plan, check_source
from planc.estimate.estimate import estimate
from planc.estimate.flops import Flops
from planc.source import SourceFile
from tests.plans import FULL, PLANS

HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY, SEQUENCE = 128, 352, 4, 260, 256
KEYS = 64


def flops_of(text: str, *settings: str) -> Flops:
    sources = [SourceFile(f"--set[{number}]", setting) for number, setting in enumerate(settings)]
    found = check_source(SourceFile("x.plan", text), base=PLANS, settings=sources)
    assert found.graph is not None and found.inventory is not None, found.diagnostics
    return estimate(found.graph, found.inventory).flops


def test_a_token_costs_six_a_weight_and_six_a_head_feature_and_position() -> None:
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEYS + 3 * HIDDEN * INTERMEDIATE
    weights = LAYERS * layer + VOCABULARY * HIDDEN
    attention = LAYERS * 2 * HIDDEN * SEQUENCE
    assert flops_of(FULL).per_token == 6 * weights + 6 * attention


def test_llama_8b_costs_what_torchtitan_counts() -> None:
    """get_num_flop_per_token: 6 (parameters without embeddings) + 12 layers x heads x head_dim x sequence."""
    found = check_plan(PLANS / "llama-3.1-8b.plan")
    assert found.graph is not None and found.inventory is not None
    counted = estimate(found.graph, found.inventory).flops.per_token
    theirs = 6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 32 * 128 * 32_768
    norms = 6 * 65 * 4096
    assert counted == theirs - norms


def test_recomputing_all_layers_adds_their_forward() -> None:
    again = flops_of(FULL.replace('"model.layers.*" -> none', '"model.layers.*" -> full'))
    head = 6 * VOCABULARY * HIDDEN
    assert again.per_token == flops_of(FULL).per_token
    assert again.executed_per_token == again.per_token + (again.per_token - head) // 3


def test_selective_recomputing_adds_every_second_matmul_and_no_attention() -> None:
    again = flops_of(FULL.replace('"model.layers.*" -> none', '"model.layers.*" -> selective'))
    # Of q, k, v, o, gate, up and down the second, the fourth and the sixth.
    layer = KEYS * HIDDEN + HIDDEN * HIDDEN + INTERMEDIATE * HIDDEN
    assert again.executed_per_token == again.per_token + 2 * LAYERS * layer


def test_a_frozen_weight_has_no_gradient_and_below_the_lowest_trained_one_is_no_backward() -> None:
    names = '"model.embed_tokens", "model.layers.{0,2}", "model.layers.1.input_layernorm"'
    frozen = f"freeze {{\n  [{names}] -> frozen\n}}\n"
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEYS + 3 * HIDDEN * INTERMEDIATE
    attention = 2 * HIDDEN * SEQUENCE
    # Layer 1 is the lowest: its queries, keys and values need no gradient of their input.
    first = HIDDEN * HIDDEN + 2 * HIDDEN * KEYS
    layers = 2 * (layer + attention) + (6 * (layer + attention) - 2 * first)
    layers += (4 * layer + 6 * attention) + 6 * (layer + attention)
    assert flops_of(FULL + frozen).per_token == layers + 6 * VOCABULARY * HIDDEN


@pytest.mark.parametrize("setting", ["mesh.tp=1", "mesh.dp_shard=1", "data.micro_batch=2"])
def test_no_layout_changes_the_work_of_a_step(setting: str) -> None:
    text = FULL[: FULL.index("expect {")]
    assert flops_of(text, setting).per_step == flops_of(text).per_step


def test_ranks_share_the_work_of_a_step() -> None:
    found = flops_of(FULL)
    assert found.executed_per_rank * 4 == found.per_token * 4096


def test_a_token_costs_the_experts_that_it_gets() -> None:
    """Qwen3-30B-A3B: 3.3 B of its 30.5 B parameters are of a token."""
    found = check_plan(PLANS / "qwen3-30b-a3b.plan")
    assert found.graph is not None and found.inventory is not None
    counted = estimate(found.graph, found.inventory).flops
    experts = 8 * 3 * 2048 * 768 + 128 * 2048
    attention = 2048 * (32 + 4 + 4) * 128 + 32 * 128 * 2048
    weights = 48 * (experts + attention) + 151_936 * 2048
    assert counted.per_token == 6 * weights + 12 * 48 * 32 * 128 * 4096
    assert counted.counted_whole == ()


def test_weights_of_which_nothing_tells_the_use_all_count() -> None:
    found = check_plan(PLANS / "deepseek-v2-lite.plan")
    assert found.graph is not None and found.inventory is not None
    one = found.inventory.modules
    unknown = tuple(replace(module, routing=None) for module in one)
    whole = estimate(found.graph, replace(found.inventory, modules=unknown)).flops
    assert "DeepseekV2Experts" in whole.counted_whole
    assert whole.per_token > 4 * estimate(found.graph, found.inventory).flops.per_token
