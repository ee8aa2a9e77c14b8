"""Activation functions, norms and attentions that keep more tensors than most, or less: the closed form as
rehearsed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.against_rehearsal import compare_text
from tests.estimate.architectures import LIMIT, row
from tests.models.architectures import architectures
from tests.slow import slow_except

HELD = 0.01
"""The models are small: blocks of the allocator's size and rotary tables show."""

_GPT2: Mapping[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 128,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 512,
    "vocab_size": 512,
    "resid_pdrop": 0,
    "embd_pdrop": 0,
    "attn_pdrop": 0,
}
_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
_GEMMA = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 32}
_PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": None}
_BLOOM: Mapping[str, Any] = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "hidden_size": 128,
    "n_layer": 3,
    "n_head": 4,
    "vocab_size": 512,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
_GEMMA2 = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 32}
CONFIGS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "gelu_new": (_GPT2, "transformer.h"),
    "gelu": ({**_GPT2, "activation_function": "gelu"}, "transformer.h"),
    "relu": ({**_GPT2, "activation_function": "relu"}, "transformer.h"),
    "gated gelu_new": ({**_LLAMA, "hidden_act": "gelu_new"}, "model.layers"),
    "gated relu": ({**_LLAMA, "hidden_act": "relu"}, "model.layers"),
    "norms in float32": ({**_LLAMA, **_GEMMA}, "model.layers"),
    "fused projection": ({**_LLAMA, **_PHI3}, "model.layers"),
    "own scores": (_BLOOM, "transformer.h"),
    "capped logits": (
        {**_LLAMA, **_GEMMA2, "vocab_size": 8_192, "attn_logit_softcapping": None, "sliding_window": 128},
        "model.layers",
    ),
    "windows in tiles": (
        {
            **_LLAMA,
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "sliding_window": 1000,
        },
        "model.layers",
    ),
}
OWN = {"own scores"}
"""Those whose attention does without transformers' interface."""

PLAN = """\
model {{
  hf = "model"
  weights = random{attention}
}}

mesh {{
  dp_shard = 8
}}

fsdp on dp_shard {{
  param_dtype = {dtype}
  reduce_dtype = float32
  "{layers}.*" -> unit
}}

data {{
  source = text("data/*.txt")
  sequence_length = {length}
  micro_batch = {micro_batch}
}}

optimizer {{
  kind = adamw(lr = 1e-3)
}}
{recomputed}
train {{
  steps = 10
  tokens_per_step = {tokens}
}}
"""


def held_error(
    folder: Path, name: str, *, micro_batch: int = 16, dtype: str = "bfloat16", mode: str = ""
) -> float:
    config, layers = CONFIGS[name]
    length = config.get("max_position_embeddings", 512)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    recomputed = f'\nactivation_checkpoint {{\n  "{layers}.*" -> {mode}\n}}\n' if mode else ""
    text = PLAN.format(
        dtype=dtype,
        layers=layers,
        length=length,
        micro_batch=micro_batch * 512 // length,
        tokens=8 * 512 * micro_batch,
        recomputed=recomputed,
        attention="\n  attention = eager" if name in OWN else "",
    )
    return compare_text(name, text, base=folder).held_error


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    "name", slow_except(CONFIGS, "gelu_new", "norms in float32", "fused projection", "own scores")
)
def test_what_is_measured_of_them_is_held(tmp_path: Path, name: str) -> None:
    assert abs(held_error(tmp_path, name)) <= HELD


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "model_type",
    slow_except(
        ("codegen", "gpt_oss", "jamba", "mamba", "mpt", "opt", "qwen3_next"), "gpt_oss", "qwen3_next"
    ),
)
def test_what_a_layers_own_code_keeps_is_counted(tmp_path: Path, model_type: str) -> None:
    """Scans, gates, experts' own ones too, rotated scores, and activations that no part of a layer holds."""
    found = row(model_type, architectures()[model_type], tmp_path)
    assert not found.refusal
    assert abs(found.error) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [8, 32])
def test_with_other_numbers_of_tokens_too(tmp_path: Path, micro_batch: int) -> None:
    assert abs(held_error(tmp_path, "gelu_new", micro_batch=micro_batch)) <= HELD


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu_new", "gated gelu_new"])
def test_in_float32_too(tmp_path: Path, name: str) -> None:
    assert abs(held_error(tmp_path, name, dtype="float32")) <= HELD


def test_recomputed_layers_keep_them_for_one_layer(tmp_path: Path) -> None:
    """A norm of one operation keeps the layer's input itself, which is counted twice for that one layer."""
    assert 0 <= held_error(tmp_path, "gelu_new", mode="full") <= 3 * HELD


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["bloom", "mpt", "olmo"])
def test_compiled_code_keeps_nothing_of_a_cast(model_type: str, tmp_path: Path) -> None:
    """Softmax in float32 outside of a kernel, and a norm without a weight. The mask is not counted."""
    found = row(model_type, architectures()[model_type], tmp_path, is_compiled=True)
    assert found.refusal == "" and abs(found.error) < 0.05, found.text
