"""A masked language model trains on every mesh as a loop by hand: masks, losses, gradients, exports.

The loop shares no code with planc: it builds the class by transformers, cuts the bytes itself, and draws the
order and the masks from numpy's generator as the documentation of `task` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, BertForPreTraining

from planc.graph.graph import Graph
from planc.verify.ranks import Record, Task, train_rank
from tests.dist.pool import run_ranks
from tests.dist.task_plan import BATCH, LENGTH, MESHES, NUM_STEPS, SEED, gradients_of, plan_text
from tests.plans import PLANS, checked, write_plan

TEXT = " ".join(f"{'abcdefgh'[i % 8]}{i * i}" for i in range(200))
PLAN = plan_text(
    task="masked_lm(probability = 0.2, mask_replace = 0.6, random_replace = 0.3)",
    layers="bert.encoder.layer.*",
    source='text("text.txt")',
    other='text("other.txt")',
)
RECOMPUTED = 'activation_checkpoint {\n  "bert.encoder.layer.*" -> MODE\n}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a class with a pooler and a second head, which the masked one leaves in their file."""
    folder = tmp_path_factory.mktemp("masked")
    (folder / "text.txt").write_text(TEXT[:500], encoding="ascii")
    (folder / "other.txt").write_text(TEXT[500:600], encoding="ascii")
    (folder / "model").mkdir()
    torch.manual_seed(0)
    model = BertForPreTraining(AutoConfig.from_pretrained(PLANS / "models" / "tiny-bert"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_bytes((PLANS / "models/tiny-bert/config.json").read_bytes())
    return folder


@dataclass
class ByHand:
    losses: list[float] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    final: dict[str, Tensor] = field(default_factory=dict)
    evaluated: float = 0.0
    model: Any = None


def raw(*seeds: int, count: int) -> Any:
    return np.random.PCG64(np.random.SeedSequence(list(seeds))).random_raw(count)


def hidden(tokens: list[int], *seeds: int, probability: float) -> tuple[list[int], list[int]]:
    """The inputs and labels of a sequence: the numbers choose tokens, decide their fate, and replace them."""
    drawn = raw(*seeds, count=3 * len(tokens)).reshape(3, -1)
    inputs, labels = list(tokens), [-100] * len(tokens)
    for at, token in enumerate(tokens):
        choice, fate, other = (int(number) for number in drawn[:, at])
        if token != 256 and choice / 2**64 < probability:
            labels[at] = token
            inputs[at] = 257 if fate / 2**64 < 0.6 else other % 256 if fate / 2**64 < 0.9 else token
    return inputs, labels


def sequences(path: Path) -> list[list[int]]:
    tokens = [*path.read_bytes(), 256]
    return [tokens[at : at + LENGTH] for at in range(0, len(tokens) - LENGTH, LENGTH)]


def batches(folder: Path, *, probability: float) -> Iterator[tuple[Tensor, Tensor]]:
    """The steps of the plan: epoch after epoch, each with an order of its own."""
    data, place = sequences(folder / "text.txt"), 0
    for _ in range(NUM_STEPS):
        rows = []
        for _ in range(BATCH):
            epoch, offset = divmod(place, len(data))
            number = int(np.argsort(raw(SEED, epoch, count=len(data)), kind="stable")[offset])
            rows.append(hidden(data[number], SEED, place, 0, 1, probability=probability))
            place += 1
        inputs, labels = zip(*rows, strict=True)
        yield torch.tensor(inputs), torch.tensor(labels)


def by_hand(
    folder: Path, *, probability: float = 0.2, prepare: Callable[[nn.Module], object] | None = None
) -> ByHand:
    model: Any = AutoModelForMaskedLM.from_pretrained(folder / "model", dtype=torch.float64)
    if prepare is not None:
        prepare(model)
    for module in model.modules():
        module.p = 0.0  # of every nn.Dropout
    model.train()
    found = ByHand(model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for inputs, labels in batches(folder, probability=probability):
        found.labels.append(int((labels != -100).sum()))
        if not found.labels[-1]:
            found.losses.append(0.0)
            continue
        total = F.cross_entropy(model(inputs).logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = total / found.labels[-1]
        loss.backward()
        if not found.gradients:
            found.gradients = gradients_of(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.losses.append(loss.item())
    found.final = {name: one.detach().clone() for name, one in model.named_parameters()}
    rows = [
        hidden(tokens, 0, at, 0, 2, probability=probability)
        for at, tokens in enumerate(sequences(folder / "other.txt"))
    ]
    inputs, labels = (torch.tensor(part) for part in zip(*rows, strict=True))
    model.eval()
    with torch.no_grad():
        found.evaluated = F.cross_entropy(model(inputs).logits.flatten(0, 1), labels.flatten()).item()
    return found


def graph_of(folder: Path, *settings: str, mode: str = "none", text: str = PLAN) -> Graph:
    path = folder / f"{mode}.plan"
    path.write_text(text + RECOMPUTED.replace("MODE", mode), encoding="utf-8")
    found = checked(path, *settings)
    assert found.graph is not None
    return found.graph


def trained(
    folder: Path,
    *settings: str,
    run_folder: Path,
    stop_after: int | None = None,
    mode: str = "none",
    text: str = PLAN,
) -> list[Record]:
    graph = graph_of(folder, *settings, mode=mode, text=text)
    task = Task(graph, folder, run_folder, stop_after=stop_after)
    return run_ranks(train_rank, graph.world_size, task, init=False)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], *, limit: float) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(one.abs().max()) for one in expected.values())
    for name, values in expected.items():
        assert float((found[name].detach() - values).abs().max()) < limit * largest, name


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_trains_as_a_loop_by_hand(folder: Path, tmp_path: Path, mesh: str) -> None:
    records = trained(folder, *MESHES[mesh], run_folder=tmp_path)
    record, expected = records[0], by_hand(folder)
    assert [one.labels for one in record.metrics] == expected.labels
    assert [one.loss for one in record.metrics] == pytest.approx(expected.losses, rel=1e-12)
    assert_equal(record.gradients, expected.gradients, limit=1e-12)
    assert_equal(record.final, expected.final, limit=1e-9)
    (evaluation,) = record.metrics[-1].evaluations
    assert evaluation.loss == pytest.approx(expected.evaluated, rel=1e-12)
    exported: Any = AutoModelForMaskedLM.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    assert_equal(dict(exported.named_parameters()), expected.final, limit=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "selective", "offload"])
def test_recomputed_layers_train_as_a_loop_by_hand(folder: Path, tmp_path: Path, mode: str) -> None:
    record, expected = trained(folder, *MESHES["dp2 tp2"], run_folder=tmp_path, mode=mode)[0], by_hand(folder)
    assert [one.loss for one in record.metrics] == pytest.approx(expected.losses, rel=1e-12)
    assert_equal(record.gradients, expected.gradients, limit=1e-12)
    assert_equal(record.final, expected.final, limit=1e-9)


@pytest.mark.slow
def test_every_mesh_drops_what_one_rank_drops(folder: Path, tmp_path: Path) -> None:
    drops = ("model.dropout=true",)
    one, *others = (
        trained(folder, *drops, *MESHES[mesh], run_folder=tmp_path / mesh, mode=mode)[0]
        for mesh, mode in (("1", "none"), ("tp2", "none"), ("dp2 tp2", "full"))
    )
    losses = [step.loss for step in one.metrics]
    assert losses != pytest.approx(by_hand(folder).losses, rel=1e-3)
    for other in others:
        assert [step.loss for step in other.metrics] == pytest.approx(losses, rel=1e-12)
        assert_equal(other.gradients, one.gradients, limit=1e-12)


@pytest.mark.slow
def test_a_run_resumed_on_another_mesh_hides_the_same_tokens(folder: Path, tmp_path: Path) -> None:
    expected = by_hand(folder)
    trained(folder, "mesh.dp_shard=2", run_folder=tmp_path, stop_after=2)
    record = trained(folder, "mesh.tp=2", run_folder=tmp_path)[0]
    assert record.first_step == 3
    assert [one.labels for one in record.metrics] == expected.labels[2:]
    assert_equal(record.final, expected.final, limit=1e-9)


@pytest.mark.slow
def test_a_step_without_hidden_tokens_changes_no_weight(folder: Path, tmp_path: Path) -> None:
    probability = 0.015
    before, _, rest = PLAN.partition('  eval "held_out"')
    text = before + rest.partition("  }\n")[2]
    path = write_plan(folder, name="few.plan", text=text, edits=[("0.2,", f"{probability},")])
    graph = checked(path, "mesh.dp_shard=2").graph
    assert graph is not None
    record = run_ranks(train_rank, graph.world_size, Task(graph, folder, tmp_path), init=False)[0]
    expected = by_hand(folder, probability=probability)
    assert 0 in expected.labels and any(expected.labels)
    assert [one.labels for one in record.metrics] == expected.labels
    assert [one.loss for one in record.metrics] == pytest.approx(expected.losses, rel=1e-12)
    assert_equal(record.final, expected.final, limit=1e-9)
