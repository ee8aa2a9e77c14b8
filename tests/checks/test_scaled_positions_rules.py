"""Sequences beyond config.json's positions, with rotary embeddings that a config or the plan scales."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.source import SourceFile

CONFIG: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 260,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
GROWING = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


def checked(
    folder: Path,
    *,
    length: int,
    rope: str = "",
    config: Mapping[str, object] = CONFIG,
    packing: str = "attend",
) -> Checked:
    (folder / "m").mkdir(exist_ok=True)
    (folder / "m" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = f"""\
model {{
  hf = "m"
  {f"rope = {rope}" if rope else ""}
}}
data {{
  source = python_stdlib()
  sequence_length = {length}
  micro_batch = 1
  packing = {packing}
}}
optimizer {{ kind = adamw(lr = 1e-3) }}
train {{ steps = 1 }}
"""
    return check_source(SourceFile("x.plan", text), base=folder)


def errors(found: Checked) -> list[tuple[str, str]]:
    return [(one.code.code, one.primary.text) for one in found.diagnostics]


@pytest.mark.parametrize("parameters", [YARN, GROWING], ids=["yarn", "dynamic"])
def test_a_config_reaches_what_it_is_scaled_for(parameters: Mapping[str, object], tmp_path: Path) -> None:
    config = {**CONFIG, "rope_parameters": parameters}
    assert errors(checked(tmp_path, length=256, config=config)) == []
    kind = parameters["rope_type"]
    expected = ("P704", f"257 tokens exceed 256 positions of {kind} scaling by 4")
    assert errors(checked(tmp_path, length=257, config=config)) == [expected]


def test_a_plan_scales_what_its_config_does_not(tmp_path: Path) -> None:
    (too_long,) = checked(tmp_path, length=250).diagnostics
    assert too_long.help is not None and "rope = yarn(factor = 4)" in too_long.help
    assert errors(checked(tmp_path, length=250, rope="yarn(factor = 4)")) == []


def test_a_plan_states_its_scaling_in_place_of_the_configs(tmp_path: Path) -> None:
    config = {**CONFIG, "rope_parameters": YARN}
    assert errors(checked(tmp_path, length=256, rope="linear(factor = 2)", config=config))
    graph = checked(tmp_path, length=512, rope="yarn(factor = 8)", config=config).graph
    assert graph is not None
    (rope,) = (op.rope for op in graph.setup if op.op == "model.build")
    assert dict(rope)["original_max_position_embeddings"] == 64


def test_documents_that_restart_positions_do_not_grow_alike(tmp_path: Path) -> None:
    config = {**CONFIG, "rope_parameters": GROWING}
    (found,) = errors(checked(tmp_path, length=256, config=config, packing="isolate"))
    assert found[0] == "P610"


def test_rotary_embeddings_by_kind_of_layer_are_not_scaled(tmp_path: Path) -> None:
    plain = {"rope_type": "default", "rope_theta": 1e4}
    kinds = {"rope_parameters": {"sliding_attention": plain, "full_attention": plain}}
    config = {**CONFIG, **kinds, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
    found = errors(checked(tmp_path, length=64, rope="yarn(factor = 4)", config=config))
    assert [code for code, _ in found] == ["P744"]
