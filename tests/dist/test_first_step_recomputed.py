"""Recomputed layers over tp send what is predicted, whatever a layer keeps after its last module.

Backward repeats a layer until it has the last tensor that was kept. Modules whose outputs are added send
before the next one keeps something (GPT-NeoX, Cohere, shared experts), gates keep what other modules return
(Qwen2-MoE, Bamba), dropouts keep masks, and indexers run without gradients. Gemma 3n calls modules twice, HRM
whole layers, some without gradients. ProphetNet's layers take rows for n-grams, Zaya's values one row of a
sequence, and Zamba's attention two hidden states.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph.graph import Graph
from planc.source import SourceFile
from tests.dist.first_steps import run_compared
from tests.inventories import save_inventory
from tests.models.tiny import tiny_config
from tests.slow import slow_except

ARCHITECTURES = {
    "bamba": "BambaForCausalLM",
    "cohere": "CohereForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "hrm_text": "HrmTextForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "prophetnet": "ProphetNetForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "zamba": "ZambaForCausalLM",
    "zaya": "ZayaForCausalLM",
}
LAYERS = {
    "falcon": "transformer.h",
    "gpt2": "transformer.h",
    "gpt_neox": "gpt_neox.layers",
    "hrm_text": "model.*_module.layers",
    "prophetnet": "prophetnet.decoder.layers",
}
DROPOUT = {"resid_pdrop": 0.1, "attn_pdrop": 0.0, "hidden_dropout": 0.1, "attention_dropout": 0.0}
_PLAN = """\
model {{
  hf = "{name}"
  seed = 7
  weights = random
  attention = {attention}
}}
mesh {{
  tp = 2
}}
tensor_parallel on tp {{
  {rules}
}}
activation_checkpoint {{
  "{block}.*{part}" -> {mode}
}}
data {{
  source = text("corpus.txt")
  tokenizer = bytes
  sequence_length = 32
  micro_batch = 2
}}
optimizer {{
  kind = adamw(lr = 1e-2)
}}
train {{
  steps = 2
  tokens_per_step = 64
}}
"""
"""Two steps are enough: the first is compared."""


def graph_of(
    name: str, mode: str, *, folder: Path, rules: str, part: str = "", dropout: bool = False
) -> Graph:
    """The graph of a tiny model with recomputed layers, or parts of them; it has dropout where asked."""
    changes = DROPOUT if dropout else {}
    (folder / name).mkdir()
    config = {**tiny_config(name, ARCHITECTURES[name]), **changes}
    (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "corpus.txt").write_text("to be or not to be " * 40)
    save_inventory(folder / name)
    block = LAYERS.get(name, "model.layers")
    attention = "eager" if name in ("deepseek_v32", "falcon", "llama4_text", "prophetnet") else "sdpa"
    text = _PLAN.format(name=name, attention=attention, rules=rules, block=block, part=part, mode=mode)
    checked = check_source(SourceFile("recomputed.plan", text), base=folder)
    assert checked.graph is not None, checked.diagnostics
    return checked.graph


def assert_as_predicted(graph: Graph, name: str, folder: Path) -> None:
    for rank in run_compared(graph, folder / name, folder / "run"):
        assert (rank.code, rank.message, rank.counted) == (None, "", (1,))


@pytest.mark.parametrize("mode", slow_except(("full", "selective"), "full"))
@pytest.mark.parametrize("name", slow_except(tuple(ARCHITECTURES), "gpt_neox"))
def test_layers_send_what_is_predicted(name: str, mode: str, tmp_path: Path) -> None:
    assert_as_predicted(graph_of(name, mode, folder=tmp_path, rules="auto(solve)"), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cohere", "deepseek_v3", "falcon", "gpt_neox"])
def test_layers_on_shards_of_sequences_send_what_is_predicted(name: str, tmp_path: Path) -> None:
    """Falcon adds into what an edge has split."""
    rules = "auto(sequence_parallel = true)"
    assert_as_predicted(graph_of(name, "full", folder=tmp_path, rules=rules), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", ".mlp"])
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox"])
def test_layers_with_dropout_send_what_is_predicted(name: str, part: str, tmp_path: Path) -> None:
    graph = graph_of(name, "full", folder=tmp_path, rules="auto(solve)", part=part, dropout=True)
    assert_as_predicted(graph, name, tmp_path)
