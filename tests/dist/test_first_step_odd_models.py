"""Odd models send what is predicted: recomputed layers over tp, whatever a layer keeps after its last module.

Backward repeats a layer until it has the last tensor that was kept. Modules whose outputs are added send
before the next one keeps something (GPT-NeoX, Cohere, shared experts), gates keep what other modules return
(Qwen2-MoE, Bamba), dropouts keep masks, and indexers run without gradients. Gemma 3n calls modules twice, HRM
whole layers, some without gradients. ProphetNet's layers take rows for n-grams, Zaya's values one row of a
sequence, and Zamba's attention two hidden states. DiffLlama's attention calls its kernel twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph.graph import Graph
from planc.graph.ops import CompileModules
from planc.runtime.compilers import unusable_inductor
from planc.runtime.rehearsal.rehearse import rehearse
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
    "diffllama": "DiffLlamaForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "hrm_text": "HrmTextForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "prophetnet": "ProphetNetForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "recurrent_gemma": "RecurrentGemmaForCausalLM",
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
EAGER = ("deepseek_v32", "falcon", "llama4_text", "prophetnet")
BUILDS = pytest.mark.skipif(unusable_inductor("cpu", os.environ) is not None, reason="inductor can't build")
DROPOUT = {"resid_pdrop": 0.1, "attn_pdrop": 0.0, "hidden_dropout": 0.1, "attention_dropout": 0.0}
_SEQUENCES = "auto(solve, sequence_parallel = true)"
_PLAN = """\
model {{
  hf = "{name}"
  seed = 7
  weights = random
  attention = {attention}
}}
{blocks}
data {{
  source = text("corpus.txt")
  tokenizer = bytes
  sequence_length = 32
  micro_batch = 1
}}
optimizer {{
  kind = adamw(lr = 1e-2)
}}
train {{
  steps = 2
  tokens_per_step = 128
}}
"""
"""Two steps are enough: the first is compared."""


def graph_of(
    name: str, mode: str, *, folder: Path, rules: str, part: str = "", dropout: bool = False
) -> Graph:
    """The graph of a tiny model with recomputed layers, or parts of them; it has dropout where asked."""
    block = LAYERS.get(name, "model.layers")
    recompute = f'activation_checkpoint {{\n  "{block}.*{part}" -> {mode}\n}}'
    blocks = f"mesh {{\n  tp = 2\n}}\ntensor_parallel on tp {{\n  {rules}\n}}\n{recompute}"
    return graph_with(blocks, name, folder=folder, changes=DROPOUT if dropout else {})


def graph_with(blocks: str, name: str, *, folder: Path, changes: Mapping[str, float] = {}) -> Graph:
    """The graph of a tiny model with these blocks."""
    (folder / name).mkdir()
    config = {**tiny_config(name, ARCHITECTURES[name]), **changes}
    (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "corpus.txt").write_text("to be or not to be " * 40)
    save_inventory(folder / name)
    text = _PLAN.format(name=name, attention="eager" if name in EAGER else "sdpa", blocks=blocks)
    checked = check_source(SourceFile("first-step.plan", text), base=folder)
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
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=BUILDS)])
@pytest.mark.parametrize(
    ("name", "rules"),
    [
        *product(
            ("bamba", "cohere", "deepseek_v3", "diffllama", "gpt2", "gpt_neox", "qwen2_moe"),
            ("auto(solve)", _SEQUENCES),
        ),
        *product(("hrm_text", "zamba", "zaya"), ("auto(solve)",)),
    ],
)
def test_compiled_layers_send_again_what_backward_reads(
    name: str, rules: str, backend: str, tmp_path: Path
) -> None:
    """Outputs that are only added, or dropped, are not read: compiled code leaves out their second sum."""
    compiled = f'compile {{\n  backend = {backend}\n  "{LAYERS.get(name, "model.layers")}.*" -> region'
    rules = f"{rules}\n}}\n{compiled}"
    graph = graph_of(name, "full", folder=tmp_path, rules=rules, dropout=name == "gpt2")
    assert_as_predicted(graph, name, tmp_path)


@pytest.mark.slow
def test_layers_that_keep_their_state_are_compiled_in_parts(tmp_path: Path) -> None:
    """RecurrentGemma's layers write to themselves: where they are recomputed, torch.compile refuses that."""
    compiled = 'compile {\n  backend = aot_eager\n  fullgraph = false\n  "model.layers.*" -> region'
    rules = f"auto(solve)\n}}\n{compiled}"
    graph = graph_of("recurrent_gemma", "full", folder=tmp_path, rules=rules)
    assert_as_predicted(graph, "recurrent_gemma", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"), [("recurrent_gemma", "Unsafe side effect"), ("gemma3n_text", "modified inplace")]
)
def test_a_rehearsal_refuses_layers_that_torch_does_not_compile(
    name: str, reason: str, tmp_path: Path
) -> None:
    """Gemma 3n's layers write to their weights, which compiled code has as views."""
    compiled = 'compile {\n  "model.layers.*" -> region'
    graph = graph_of(name, "full", folder=tmp_path, rules=f"auto(solve)\n}}\n{compiled}")
    rehearsal = rehearse(graph, base=tmp_path)
    (failure,) = rehearsal.failures
    assert failure.span == next(op.span for op in graph.setup if isinstance(op, CompileModules))
    assert reason in failure.message
    assert failure.help == "the rehearsal passes without `compile`: compile other modules, or none"
    assert rehearsal.measured is not None


@pytest.mark.slow
def test_logits_of_a_vocabulary_that_does_not_divide_are_scattered_as_predicted(tmp_path: Path) -> None:
    """The last rank's rows are padded."""
    rules = '"lm_head" -> rowwise_split_input(output = Shard(-1))'
    blocks = f"mesh {{\n  tp = 2\n}}\ntensor_parallel on tp {{\n  {rules}\n}}"
    graph = graph_with(blocks, "gpt_neox", folder=tmp_path, changes={"vocab_size": 261})
    assert_as_predicted(graph, "gpt_neox", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=BUILDS)])
@pytest.mark.parametrize("name", ["cohere", "gpt_neox"])
def test_compiled_layers_gather_what_two_modules_read_once(name: str, backend: str, tmp_path: Path) -> None:
    """So do they the gradient of two outputs that are added."""
    compiled = f'compile {{\n  backend = {backend}\n  "{LAYERS.get(name, "model.layers")}.*" -> region\n}}'
    blocks = f"mesh {{\n  tp = 2\n}}\ntensor_parallel on tp {{\n  {_SEQUENCES}\n}}\n{compiled}"
    assert_as_predicted(graph_with(blocks, name, folder=tmp_path), name, tmp_path)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("hrm_text", ("model.*_module.layers.*",)),
        ("deepseek_v32", ("model.layers.*", "model.layers.*.self_attn.indexer")),
        ("deepseek_v32", ("model.layers.*.self_attn", "model.layers.*.self_attn.indexer")),
        ("deepseek_v32", ("model.layers.*.self_attn.indexer",)),
    ],
)
def test_units_that_run_without_gradients_are_gathered_as_predicted(
    name: str, units: tuple[str, ...], tmp_path: Path
) -> None:
    rules = "\n".join(f'  "{unit}" -> unit' for unit in units)
    blocks = f"mesh {{\n  dp_shard = 2\n}}\nfsdp on dp_shard {{\n{rules}\n}}"
    assert_as_predicted(graph_with(blocks, name, folder=tmp_path), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rotate", ["allgather", "ring", "ulysses"])
@pytest.mark.parametrize("name", ["diffllama", "hrm_text"])
def test_attentions_that_are_called_again_send_again(name: str, rotate: str, tmp_path: Path) -> None:
    fsdp = f'fsdp on cp {{\n  "{LAYERS.get(name, "model.layers")}.*" -> unit\n}}'
    blocks = f"mesh {{\n  cp = 2\n}}\n{fsdp}\ncontext_parallel on cp {{\n  rotate = {rotate}\n}}"
    assert_as_predicted(graph_with(blocks, name, folder=tmp_path), name, tmp_path)
