"""Rotary embeddings that a plan scales, against transformers with the same `rope_parameters`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoConfig

from planc.api import check_source
from planc.graph.graph import Graph
from planc.source import SourceFile
from planc.verify.ranks import Record, Task, train_rank
from tests.dist.pool import run_ranks, start_server
from tests.models.agreement import agreement
from tests.models.independent import NUM_SEQUENCES, Measured, measured, write_corpus, write_weights
from tests.slow import slow_except

POSITIONS, LENGTH = 64, 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "vocab_size": 260,
    "tie_word_embeddings": False,
}
STATED: Mapping[str, tuple[str, Mapping[str, object], int]] = {
    "linear": ("linear(factor = 4)", {"factor": 4.0}, POSITIONS),
    "dynamic": ("dynamic(factor = 4)", {"factor": 4.0}, POSITIONS),
    "yarn": (
        "yarn(factor = 4)",
        {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0},
        LENGTH,
    ),
    "llama3": (
        "llama3(factor = 8, original_max_position_embeddings = 32, high_freq_factor = 3)",
        {
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "low_freq_factor": 1.0,
            "high_freq_factor": 3.0,
        },
        LENGTH,
    ),
}
"""What a plan states, what transformers reads, and the positions of the exported config.json."""
MESHES: Mapping[str, tuple[int, str, str]] = {
    "one process": (1, "mesh { tp = 1 }", ""),
    "cp 2": (
        2,
        "mesh { cp = 2 }",
        'context_parallel on cp { rotate = allgather }\nfsdp on cp { "model.layers.*" -> unit }',
    ),
    "tp 2": (2, "mesh { tp = 2 }", "tensor_parallel on tp { auto }"),
}


def plan(rope: str, *, model: str = "plain", mesh: str = "one process", more: str = "") -> str:
    _, sizes, blocks = MESHES[mesh]
    return f"""\
model {{
  hf = "{model}"
  weights = pretrained
  {f"rope = {rope}" if rope else ""}
}}
{sizes}
{blocks}
data {{
  source = text("corpus.txt")
  tokenizer = bytes
  sequence_length = {LENGTH}
  micro_batch = {NUM_SEQUENCES}
}}
optimizer {{
  kind = adamw(lr = 1e-2, betas = [0.9, 0.95], eps = 1e-3, weight_decay = 0.1)
  clip_grad_norm = 1.0
}}
train {{
  steps = 2
}}
{more}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plain` has no scaling; `yarn` and the others are as transformers itself would be told."""
    start_server()
    folder = tmp_path_factory.mktemp("scaled")
    (folder / "plain").mkdir()
    write_config(folder / "plain", CONFIG)
    write_weights(folder / "plain", noise=0.25)
    for kind, (_, parameters, _) in STATED.items():
        shutil.copytree(folder / "plain", folder / kind)
        rope = {"rope_type": kind, "rope_theta": 10_000.0, **parameters}
        write_config(folder / kind, {**CONFIG, "rope_parameters": rope})
    write_config(folder / "plain", CONFIG)
    write_corpus(folder / "corpus.txt", sequence_length=LENGTH)
    return folder


def write_config(folder: Path, config: Mapping[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def graph_of(text: str, folder: Path) -> Graph:
    checked = check_source(SourceFile("scaled.plan", text), base=folder)
    assert isinstance(checked.graph, Graph), checked.diagnostics
    return checked.graph


@cache
def reference(folder: Path, kind: str) -> Measured:
    corpus = folder / "corpus.txt"
    (found,) = run_ranks(measured, 1, folder / kind, corpus, LENGTH, "float32", 2, init=False)
    return found


def trained(text: str, folder: Path, run: Path, *, ranks: int) -> list[Record]:
    return run_ranks(train_rank, ranks, Task(graph_of(text, folder), folder, run, None), init=False)


CASES = {f"{kind}, {mesh}": (kind, mesh) for kind in STATED for mesh in MESHES}


def differences(records: list[Record], expected: Measured, *, kind: str) -> Iterator[str]:
    """What is wrong. transformers grows dynamic frequencies in its first forward, planc has them before."""
    for one in agreement(records, expected, dtype="float32").wrong:
        if kind != "dynamic" or "inv_freq" not in one:
            yield one


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_except(CASES, "yarn, one process", "yarn, cp 2", "dynamic, tp 2"))
def test_a_stated_scaling_trains_as_transformers_does(name: str, folder: Path, tmp_path: Path) -> None:
    kind, mesh = CASES[name]
    found = trained(plan(STATED[kind][0], mesh=mesh), folder, tmp_path, ranks=MESHES[mesh][0])
    assert [*differences(found, reference(folder, kind), kind=kind)] == []


@pytest.mark.parametrize("name", slow_except(CASES, "dynamic, cp 2"))
def test_a_scaling_of_a_config_trains_as_transformers_does(name: str, folder: Path, tmp_path: Path) -> None:
    kind, mesh = CASES[name]
    found = trained(plan("", model=kind, mesh=mesh), folder, tmp_path, ranks=MESHES[mesh][0])
    assert [*differences(found, reference(folder, kind), kind=kind)] == []


def test_without_a_scaling_training_is_another(folder: Path, tmp_path: Path) -> None:
    """The comparison sees what a scaling does."""
    found = trained(plan("linear(factor = 8)"), folder, tmp_path, ranks=1)
    assert any("loss" in one for one in agreement(found, reference(folder, "yarn"), dtype="float32").wrong)


@pytest.mark.parametrize("kind", slow_except(STATED, "yarn"))
def test_an_export_states_the_scaling(kind: str, folder: Path, tmp_path: Path) -> None:
    stated, parameters, positions = STATED[kind]
    text = plan(stated, more='checkpoint {\n  save_every = 2 steps\n  export "hf" { dtype = float32 }\n}')
    trained(text, folder, tmp_path, ranks=1)
    export = tmp_path / "export" / "hf"
    found = AutoConfig.from_pretrained(export)
    assert found.rope_parameters == {"rope_type": kind, "rope_theta": 10_000.0, **parameters}
    assert found.max_position_embeddings == positions
    written = json.loads((export / "config.json").read_text(encoding="utf-8"))
    assert written["rope_scaling"]["rope_type"] == kind
