"""Parameters without gradients, as transformers' own backward on the CPU leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from planc.inventory.codec import dumps, loads
from planc.inventory.probe.probe import probe
from tests.models.tiny import tiny_config

MODELS = {
    "afmoe": "AfmoeForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "llama": "LlamaForCausalLM",
}
WITHOUT = {"afmoe": "expert_bias", "deepseek_v32": "indexer"}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("model_type", MODELS)
def test_they_are_those_that_backward_leaves_without(model_type: str, tmp_path: Path) -> None:
    architecture = MODELS[model_type]
    content = tiny_config(model_type, architecture)
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    inventory = probe(tmp_path)
    assert loads(dumps(inventory)) == inventory

    config = transformers.AutoConfig.from_pretrained(tmp_path, attn_implementation="eager")
    model = getattr(transformers, architecture)(config)
    ids = torch.arange(64).reshape(1, 64) % 8
    model(input_ids=ids, labels=ids).loss.backward()
    named = dict(model.named_parameters())
    frozen = {name for name, one in named.items() if not one.requires_grad}
    # Experts that no token chose have zeros, or nothing where code loops over those with tokens.
    left = {name for name, one in named.items() if one.grad is None and ".experts." not in name}

    def names(field: str) -> set[str]:
        return {f"{one.fqn}.{name}" for one in inventory.modules for name in getattr(one, field)}

    assert names("frozen") == frozen
    assert names("unreached") == left - frozen
    assert all(WITHOUT[model_type] in name for name in left | frozen)
    assert bool(left | frozen) == (model_type in WITHOUT)
