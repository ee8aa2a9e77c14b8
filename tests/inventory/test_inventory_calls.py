"""The calls of modules in one forward, and of attention in one of a module's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from planc.inventory.codec import dumps, loads
from planc.inventory.footprint import ONCE, Call
from planc.inventory.probe.probe import probe
from planc.inventory.schema import Inventory
from tests.models.tiny import tiny_config


def probed(model_type: str, architecture: str, folder: Path) -> Inventory:
    (folder / "config.json").write_text(json.dumps(tiny_config(model_type, architecture)), encoding="utf-8")
    inventory = probe(folder)
    assert loads(dumps(inventory)) == inventory
    return inventory


@pytest.mark.parametrize(
    ("model_type", "architecture", "calls"),
    [
        ("llama", "LlamaForCausalLM", {"model.layers.0.mlp.gate_proj": ONCE}),
        # One row for each of its two n-grams, beside the token's own.
        (
            "prophetnet",
            "ProphetNetForCausalLM",
            {
                "prophetnet.decoder.layers.0.self_attn.query_proj": (Call(rows_per_token=3),),
                "prophetnet.decoder.layers.1.self_attn.out_proj": (Call(), Call(rows_per_token=2)),
            },
        ),
        # A constant takes the place of the token before the first.
        (
            "zaya",
            "ZayaForCausalLM",
            {
                "model.layers.0.self_attn.qkv_proj.v_proj_delayed": (
                    Call(),
                    Call(rows_per_token=0, rows_per_sequence=1, is_constant=True),
                )
            },
        ),
        (
            "deepseek_v32",
            "DeepseekV32ForCausalLM",
            {"model.layers.0.self_attn.indexer": (Call(without_gradients=True),)},
        ),
    ],
)
def test_a_module_has_the_calls_and_rows_of_a_forward(
    model_type: str, architecture: str, calls: Mapping[str, tuple[Call, ...]], tmp_path: Path
) -> None:
    inventory = probed(model_type, architecture, tmp_path)
    assert {module.fqn: module.calls for module in inventory.modules if module.fqn in calls} == calls


@pytest.mark.parametrize(
    ("model_type", "architecture", "calls"),
    [("llama", "LlamaForCausalLM", 1), ("diffllama", "DiffLlamaForCausalLM", 2)],
)
def test_an_attention_has_its_calls(model_type: str, architecture: str, calls: int, tmp_path: Path) -> None:
    inventory = probed(model_type, architecture, tmp_path)
    assert {one.calls for one in inventory.attentions} == {calls}
