"""Experts in the rehearsal: products in every dtype of a run, and loops over those that have tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.deep_check.check import counted_collectives, predicted_collectives
from planc.estimate.estimate import estimate
from planc.runtime.rehearsal.findings import Rehearsal
from planc.runtime.rehearsal.rehearse import rehearse
from planc.source import SourceFile
from tests.models.tiny import tiny_config

MODELS = Path(__file__).parents[2] / "plans" / "models"
DBRX = {
    "architectures": ["DbrxForCausalLM"],
    "model_type": "dbrx",
    "vocab_size": 264,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
}
PLAN = """model {{ hf = "{model}" }}
mesh {{ dp_shard = 2 }}
fsdp on dp_shard {{
  param_dtype = {dtype}
  "{layers}" -> unit
}}
data {{
  source = python_stdlib()
  sequence_length = 32
  micro_batch = 2
}}
optimizer {{ kind = adamw(lr = 1e-3) }}
train {{ steps = 2 }}
"""


def written(base: Path, config: Mapping[str, object]) -> Path:
    """A model's folder."""
    model = base / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return model


def checked_plan(base: Path, *, model: Path, layers: str, dtype: str = "float32", more: str = "") -> Checked:
    text = PLAN.format(model=model, layers=layers, dtype=dtype) + more
    return check_source(SourceFile("experts.plan", text), base=base)


def rehearsed(checked: Checked, base: Path) -> Rehearsal:
    assert checked.graph is not None, checked.diagnostics
    return rehearse(checked.graph, base=base)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_experts_are_rehearsed_in_every_dtype(tmp_path: Path, dtype: str) -> None:
    checked = checked_plan(tmp_path, model=MODELS / "tiny-qwen3-moe", layers="model.layers.*", dtype=dtype)
    assert rehearsed(checked, tmp_path).failures == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loss"), [("tiny-qwen3-moe", "switch(over = step)"), ("tiny-deepseek-v3", "bias")]
)
def test_balance_is_rehearsed_on_fewer_layers(tmp_path: Path, name: str, loss: str) -> None:
    """What the others would send is counted for them, and a log reads no value."""
    config = json.loads((MODELS / name / "config.json").read_text(encoding="utf-8"))
    model = written(tmp_path, {**config, "num_hidden_layers": 6})
    more = f"balance {{\n  loss = {loss}\n  z_loss = 1e-3\n}}\n"
    checked = checked_plan(tmp_path, model=model, layers="model.layers.*", more=more)
    rehearsal = rehearsed(checked, tmp_path)
    assert rehearsal.failures == () and rehearsal.measured is not None
    assert checked.graph is not None and checked.inventory is not None
    expected = predicted_collectives(estimate(checked.graph, checked.inventory))
    assert any(op.name == "experts.balance" for op in checked.graph.setup)
    assert expected == counted_collectives(rehearsal.measured)


RECOMPUTED = 'activation_checkpoint {{ "transformer.blocks.*" -> {} }}\n'


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("more", ["", RECOMPUTED.format("full"), RECOMPUTED.format("selective")])
def test_experts_that_are_looped_over_are_rehearsed(tmp_path: Path, more: str) -> None:
    checked = checked_plan(tmp_path, model=written(tmp_path, DBRX), layers="transformer.blocks.*", more=more)
    rehearsal = rehearsed(checked, tmp_path)
    assert rehearsal.failures == ()
    assert rehearsal.measured is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "architecture", "layers"),
    [
        # A norm without parameters has a buffer that the initialization of the mixer around it writes to.
        ("falcon_mamba", "FalconMambaForCausalLM", "backbone.layers.*"),
        # Lists of single projections are no layers: code takes each by its number.
        ("gemma3n_text", "Gemma3nForCausalLM", "model.layers.*"),
        # Biases of experts are frozen.
        ("afmoe", "AfmoeForCausalLM", "model.layers.*"),
    ],
)
def test_what_runs_is_not_refused(tmp_path: Path, model_type: str, architecture: str, layers: str) -> None:
    model = written(tmp_path, tiny_config(model_type, architecture))
    checked = checked_plan(tmp_path, model=model, layers=layers)
    rehearsal = rehearsed(checked, tmp_path)
    assert rehearsal.failures == () and rehearsal.measured is not None
    assert checked.graph is not None and checked.inventory is not None
    expected = predicted_collectives(estimate(checked.graph, checked.inventory))
    assert expected == counted_collectives(rehearsal.measured)
