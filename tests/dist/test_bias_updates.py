"""The biases of routers move by the loads of whole steps: on every mesh bitwise as written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.graph.ops import OpenData
from planc.runtime.data.open import open_data
from planc.runtime.data.ops import data_spec
from tests.dist.first_steps import run_compared
from tests.dist.test_expert_parallel import (
    BETAS,
    DECAY,
    EPS,
    MODELS,
    NORM,
    RATE,
    SEQUENCES,
    STEPS,
    folder_of,
    graph_of,
    trained,
)
from tests.models.architectures import architectures
from tests.slow import slow_except

UPDATE = 0.02
BIAS = "e_score_correction_bias"
BALANCED = (
    "train {",
    f"balance {{\n  loss = bias(update = {UPDATE})\n}}\n\n"
    "checkpoint {\n  save_every = 2 steps\n}\n\ntrain {",
)
AT_ONCE = ("micro_batch = 1", f"micro_batch = {SEQUENCES}")
FOUR_AT_ONCE = ("micro_batch = 1", "micro_batch = 2")
RECOMPUTED = ("data {", 'activation_checkpoint {\n  "model.layers.*" -> full\n}\n\ndata {')


@dataclass(frozen=True)
class ByHand:
    biases: dict[str, Tensor]
    """After all steps."""
    losses: tuple[float, ...]


@cache
def by_hand(folder: Path, batches: tuple[tuple[int, ...], ...], graph: Graph) -> ByHand:
    """One process of transformers; after each step every bias moves by the choices of all its tokens."""
    (op,) = (op for op in graph.setup if isinstance(op, OpenData))
    data = open_data(data_spec(op, training=op), base=folder, model_vocab_size=260).dataset
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).train()
    chosen: dict[str, Tensor] = {}
    parents = {name.rpartition(".")[0]: module for name, module in model.named_modules() if _is_experts(name)}
    for parent, module in parents.items():
        module.register_forward_pre_hook(
            lambda _, arguments, name=parent: chosen.__setitem__(name, arguments[1])
        )
    biases = {name: bias for name, bias in model.state_dict(keep_vars=True).items() if name.endswith(BIAS)}
    assert len(biases) == len(parents) > 0
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, foreach=False)
    losses = []
    for ids in batches:
        inputs, labels = (
            torch.stack([torch.from_numpy(data[sample][part]) for sample in ids]) for part in (0, 1)
        )
        loss = cross_entropy(model(inputs, use_cache=False).logits.flatten(0, 1), labels.flatten())
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(learned, NORM)
        optimizer.step()
        optimizer.zero_grad()
        for name, bias in biases.items():
            (parent,) = (path for path in parents if name.startswith(f"{path}."))
            numbers = [int((chosen[parent] == expert).sum()) for expert in range(bias.numel())]
            mean = sum(numbers) / len(numbers)
            for expert, number in enumerate(numbers):
                direction = 0 if number == mean else 1 if number < mean else -1
                bias.detach().view(-1)[expert] += UPDATE * direction
    return ByHand({name: bias.detach() for name, bias in biases.items()}, tuple(losses))


def _is_experts(name: str) -> bool:
    return name.endswith(".experts")


def folder_with_biases(root: Path, name: str) -> Path:
    if name not in MODELS:
        MODELS[name] = (architectures()[name], {})  # type: ignore[index]
    folder = folder_of(root, name)
    if not (folder / "biased").exists():
        model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
        generator = torch.Generator().manual_seed(5)
        for key, tensor in model.state_dict(keep_vars=True).items():
            if key.endswith(BIAS):
                drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.detach().copy_(drawn * 0.05)
        config = (folder / "model" / "config.json").read_text()
        model.save_pretrained(folder / "model")
        (folder / "model" / "config.json").write_text(config)
        (folder / "biased").touch()
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("biases")


Case = tuple[str, str, tuple[tuple[str, str], ...]]
CASES: tuple[Case, ...] = (
    ("deepseek_v3", "ep 2 of 4", ()),
    ("deepseek_v3", "one", (AT_ONCE,)),
    ("deepseek_v3", "one", (FOUR_AT_ONCE,)),
    ("deepseek_v3", "ep 2", ()),
    ("deepseek_v3", "ep 2", (FOUR_AT_ONCE, RECOMPUTED)),
    ("deepseek_v3", "ep 4", ()),
    ("deepseek_v3", "ep 2, replicas", ()),
    ("deepseek_v3", "ep 2, pp", ()),
    ("deepseek_v3", "ep 2, tp", ()),
    ("deepseek_v3", "ep 2, tp of sequences", ()),
    ("deepseek_v3", "ep 2 of 4, tp", ()),
    ("deepseek_v3", "ep 2, cp", ()),
    ("deepseek_v3", "ep 4, over cp", ()),
    ("deepseek_v3", "ep 4, over tp", ()),
    ("laguna", "ep 2", ()),
)


@pytest.mark.parametrize("case", slow_except(CASES, str(CASES[0])), ids=str)
def test_biases_move_bitwise_as_by_hand(case: Case, root: Path, tmp_path: Path) -> None:
    """On one rank, two, four and eight, with one micro-batch in a step or more; all ranks have the same."""
    name, mesh, edits = case
    folder = folder_with_biases(root, name)
    graph = graph_of(folder, mesh, edits=(*edits, BALANCED))
    records = trained(graph, folder, tmp_path)
    first = records[0]
    hand = by_hand(folder, tuple(step.sample_ids for step in first.metrics), graph)
    assert [step.loss for step in first.metrics] == pytest.approx(hand.losses, rel=1e-6)
    for bias, wanted in hand.biases.items():
        assert torch.equal(first.final[bias], wanted), (first.final[bias], wanted)
        saved = [value for rank in records for key, value in rank.states[STEPS].items() if key.endswith(bias)]
        assert len(saved) == len(records) and len({*saved}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [("ep 2", "one"), ("ep 2 of 4, tp", "ep 4"), ("one", "ep 2, pp")]
)
def test_a_checkpoint_has_the_biases(before: str, after: str, root: Path, tmp_path: Path) -> None:
    folder = folder_with_biases(root, "deepseek_v3")
    whole = trained(graph_of(folder, before, edits=(BALANCED,)), folder, tmp_path / "whole")[0]
    graph = graph_of(folder, before, edits=(BALANCED,))
    trained(graph, folder, tmp_path / "stopped", stop_after=2)
    resumed = trained(graph_of(folder, after, edits=(BALANCED,)), folder, tmp_path / "stopped")[0]
    assert resumed.first_step == 3
    names = [name for name in whole.final if name.endswith(BIAS)]
    assert names and all(torch.equal(resumed.final[name], whole.final[name]) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", ["ep 2 of 4", "ep 2, pp", "ep 2, tp", "ep 2, cp", "ep 2, replicas", "ep 4, over tp"]
)
def test_a_first_step_sends_what_is_predicted(mesh: str, root: Path, tmp_path: Path) -> None:
    folder = folder_with_biases(root, "deepseek_v3")
    graph = graph_of(folder, mesh, edits=(BALANCED,))
    for rank in run_compared(graph, folder / "model", tmp_path):
        assert (rank.code, rank.message, rank.counted) == (None, "", (1,))
