"""Chats can have a step without labels: it counts 0 of them and changes no weight, on any mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.graph.ops import OpenData
from planc.runtime.data.dataset import Dataset
from planc.runtime.data.open import open_data
from planc.runtime.data.ops import data_spec
from planc.verify.ranks import Record, Task, train_rank
from tests.data.conversing import TALK, save_talks, save_tokenizer
from tests.dist.pool import run_ranks
from tests.plans import PLANS, checked, write_plan

NUM_STEPS = 6
LENGTH = 16
PLAN = f"""\
model {{
  hf = "model"
  weights = pretrained
}}

mesh {{
  dp_shard = 1
}}

fsdp on dp_shard, cp {{
  "model.layers.*" -> unit
}}

context_parallel on cp {{
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}}

tensor_parallel on tp {{
  auto
}}

data {{
  source = chat("talks.jsonl")
  tokenizer = file("tokenizer", end_of_document = "<|endoftext|>")
  packing = attend
  sequence_length = {LENGTH}
  micro_batch = 1
}}

optimizer {{
  kind = adamw(lr = 1e-2, betas = [0.9, 0.95], weight_decay = 0.1)
  clip_grad_norm = 1.0
}}

checkpoint {{
  save_every = 1 steps
}}

train {{
  steps = {NUM_STEPS}
  tokens_per_step = {2 * LENGTH}
}}
"""
MESHES = {
    "1": (),
    "dp2": ("mesh.dp_shard=2",),
    "tp2": ("mesh.tp=2",),
    "cp2": ("mesh.cp=2",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most conversations have a long question and no answer."""
    folder = tmp_path_factory.mktemp("labels")
    save_tokenizer(folder / "tokenizer", has_config=False)
    question = [{"role": "user", "content": "Où est le café ? " * 6}]
    save_talks(folder / "talks.jsonl", *([TALK] * 2 + [question] * 6) * 2)
    config = json.loads((PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8"))
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 320}))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    model.to(torch.float32).save_pretrained(folder / "model")
    write_plan(folder, text=PLAN)
    return folder


def graph_of(folder: Path, *settings: str) -> Graph:
    found = checked(folder / "x.plan", *settings)
    assert found.graph is not None, found.diagnostics
    return found.graph


def dataset_of(folder: Path) -> Dataset:
    (op,) = (op for op in graph_of(folder).setup if isinstance(op, OpenData))
    return open_data(data_spec(op, training=op), base=folder, model_vocab_size=320).dataset


def trained(folder: Path, *settings: str, run_folder: Path, stop_after: int | None = None) -> list[Record]:
    graph = graph_of(folder, *settings)
    task = Task(graph, folder, run_folder, stop_after=stop_after)
    return run_ranks(train_rank, graph.world_size, task, init=False)


def by_hand(folder: Path, samples: list[tuple[int, ...]]) -> tuple[dict[str, Tensor], list[int], list[float]]:
    """Weights, labels and losses of a loop that skips steps without labels."""
    dataset = dataset_of(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager")
    model.train()
    decayed = [one for one in model.parameters() if one.ndim > 1]
    others = [one for one in model.parameters() if one.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    tokens, losses = [], []
    for ids in samples:
        rows = [dataset[one] for one in ids]
        inputs = torch.stack([torch.from_numpy(row[0]) for row in rows])
        labels = torch.stack([torch.from_numpy(row[1]) for row in rows])
        tokens.append(int((labels != -100).sum()))
        if not tokens[-1]:
            losses.append(0.0)
            continue
        total = F.cross_entropy(model(inputs).logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = total / tokens[-1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {name: one.detach() for name, one in model.named_parameters()}, tokens, losses


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_goes_on_as_a_loop_by_hand(folder: Path, tmp_path: Path, mesh: str) -> None:
    record = trained(folder, *MESHES[mesh], run_folder=tmp_path)[0]
    weights, tokens, losses = by_hand(folder, [one.sample_ids for one in record.metrics])
    assert [one.labels for one in record.metrics] == tokens
    # The first step that is without labels comes after one that has filled the moments.
    assert 0 in tokens[1:-1]
    assert [one.loss for one in record.metrics] == pytest.approx(losses, rel=1e-5)
    assert [bool(one.is_skipped) for one in record.metrics] == [not number for number in tokens]
    assert len({one.tokens for one in record.metrics}) == 1
    for name, values in weights.items():
        # Decay alone would move a weight by a thousandth of it. Adam makes much of a gradient's last bits.
        difference = (record.final[name] - values).abs()
        assert difference.mean() < 1e-6
        assert difference.max() < 1e-3


@pytest.mark.slow
def test_a_guard_lets_it_pass_and_remembers_nothing_of_it(folder: Path, tmp_path: Path) -> None:
    settings = ("guard.nonfinite=stop", "guard.loss_spike=stop(window = 5 steps)")
    guarded = trained(folder, *settings, run_folder=tmp_path / "guarded")[0]
    plain = trained(folder, run_folder=tmp_path / "plain")[0]
    assert [one.loss for one in guarded.metrics] == [one.loss for one in plain.metrics]
    manifest = json.loads(
        (tmp_path / "guarded/checkpoints" / f"step-{NUM_STEPS}" / "manifest.json").read_text()
    )
    remembered = manifest["progress"]["recent_losses"]
    assert remembered == [one.loss for one in plain.metrics if one.labels][-5:]


@pytest.mark.slow
def test_a_run_resumed_at_such_a_step_is_exact(folder: Path, tmp_path: Path) -> None:
    whole = trained(folder, run_folder=tmp_path / "whole")[0]
    for step in [one.step for one in whole.metrics[:-1] if not one.labels]:
        run_folder = tmp_path / str(step)
        trained(folder, run_folder=run_folder, stop_after=step)
        again = trained(folder, run_folder=run_folder)[0]
        assert again.first_step == step + 1
        assert all(again.final[name].equal(whole.final[name]) for name in whole.final)
