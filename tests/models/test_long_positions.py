"""Positions far enough for a rounded rotary frequency to show, against transformers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from planc.api import check_source
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import BuildOptimizer
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.source import SourceFile
from planc.verify.ranks import BeforeOp, Record, Task, train_rank
from tests.dist.pool import run_ranks, start_server
from tests.models.agreement import agreement
from tests.models.independent import NUM_SEQUENCES, Measured, measured, write_corpus, write_weights

LENGTH = 2_048
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "max_position_embeddings": LENGTH,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    "vocab_size": 260,
    "tie_word_embeddings": False,
}
PLAN = f"""\
model {{
  hf = "model"
  dtype = bfloat16
  weights = pretrained
}}
mesh {{ tp = 1 }}
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
  steps = 1
}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    start_server()
    folder = tmp_path_factory.mktemp("long")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    # Weights so large that attention is sharp, and what it sees decides the gradients.
    write_weights(folder / "model", noise=0.25)
    write_corpus(folder / "corpus.txt", sequence_length=LENGTH)
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> Measured:
    corpus = folder / "corpus.txt"
    (found,) = run_ranks(measured, 1, folder / "model", corpus, LENGTH, "bfloat16", 1, init=False)
    return found


def trained(folder: Path, run: Path, before_op: BeforeOp | None = None) -> list[Record]:
    graph = check_source(SourceFile("long.plan", PLAN), base=folder).graph
    assert isinstance(graph, Graph)
    return run_ranks(train_rank, 1, Task(graph, folder, run, before_op), init=False)


@pytest.mark.slow
def test_far_positions_train_as_transformers_has_them(
    folder: Path, reference: Measured, tmp_path: Path
) -> None:
    found = agreement(trained(folder, tmp_path), reference, dtype="bfloat16")
    assert found.wrong == ()


def round_frequencies(state: State, op: Op, position: Position) -> None:
    """What a cast of the whole model to its dtype does to them."""
    if isinstance(op, BuildOptimizer):
        for name, buffer in state[nn.Module].named_buffers():
            if name.endswith("inv_freq"):
                buffer.copy_(buffer.to(torch.bfloat16))


@pytest.mark.slow
def test_rounded_frequencies_are_beyond_what_bfloat16_does(
    folder: Path, reference: Measured, tmp_path: Path
) -> None:
    found = agreement(trained(folder, tmp_path, round_frequencies), reference, dtype="bfloat16")
    assert any(one.startswith("gradients are off") for one in found.wrong), found.wrong
