"""A classifier trains on every mesh as a loop by hand: losses of texts, gradients, evaluations, exports.

The loop shares no code with planc: it builds the class by transformers, pads the bytes itself, hides padding
by an attention mask, and draws the order from numpy's generator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from planc.graph.graph import Graph
from planc.verify.ranks import Record, Task, train_rank
from tests.dist.pool import run_ranks
from tests.dist.task_plan import BATCH, LENGTH, MESHES, NUM_STEPS, SEED, gradients_of, plan_text
from tests.plans import PLANS, checked

NUM_LABELS, PADDING = 3, 1
ROWS = (
    *(("the mesh holds", 0), ("every weight once, and then sums the gradients", 2), ("a", 1)),
    *(("ranks of tp hold", 2), ("hello there", 1), ("0 1 2 3 4", 0), ("zz", 2)),
)
OTHERS = (("a mesh", 1), ("b", 0), ("every rank sums its gradients over dp", 2))
MODELS = {
    "bert": ("tiny-bert", "BertForSequenceClassification", "bert.encoder.layer.*"),
    "llama": ("tiny-llama", "LlamaForSequenceClassification", "model.layers.*"),
}
"""An encoder, whose first token stands for a text, and a decoder, whose last one does."""


def write_rows(folder: Path, rows: Sequence[Any] = ROWS, others: Sequence[Any] = OTHERS) -> None:
    for file, some in (("rows", rows), ("others", others)):
        lines = [json.dumps({"label": label, "text": text}) for text, label in some]
        (folder / f"{file}.jsonl").write_text("\n".join(lines), encoding="ascii")


def write_plan(folder: Path, *, layers: str, task: str = "sequence_classification") -> Path:
    path = folder / "a.plan"
    text = plan_text(
        task=f"{task}(labels = {NUM_LABELS})",
        layers=layers,
        source='labeled("rows.jsonl")',
        other='labeled("others.jsonl")',
    )
    path.write_text(text, encoding="utf-8")
    return path


def written(folder: Path, model: str) -> Path:
    """The plan of a model, next to its weights and its rows."""
    name, architecture, layers = MODELS[model]
    write_rows(folder)
    write_classifier(folder, name, architecture)
    return write_plan(folder, layers=layers)


def write_classifier(folder: Path, name: str, architecture: str) -> None:
    """Write a small model of the class of this name."""
    config = json.loads((PLANS / "models" / name / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": [architecture], "pad_token_id": PADDING}
    config |= {"id2label": {str(number): f"class {number}" for number in range(NUM_LABELS)}}
    config |= {"label2id": {f"class {number}": number for number in range(NUM_LABELS)}}
    write_model(folder / "model", config)


def write_model(folder: Path, config: dict[str, Any]) -> None:
    """Write a model of the config's class, no parameter of which is constant."""
    folder.mkdir()
    text = json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8")
    torch.manual_seed(0)
    built = getattr(transformers, config["architectures"][0])(AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    built.save_pretrained(folder)
    (folder / "config.json").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module", params=MODELS)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp(request.param), request.param)


@dataclass
class ByHand:
    num_labels: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    final: dict[str, Tensor] = field(default_factory=dict)
    evaluated: tuple[float, float] = (0.0, 0.0)
    """The loss and the accuracy."""
    model: Any = None


def padded(rows: list[tuple[str, int]]) -> tuple[dict[str, Tensor], Tensor]:
    """The inputs of a model, and the classes."""
    ids = torch.full((len(rows), LENGTH), PADDING)
    mask = torch.zeros_like(ids)
    for row, (text, _) in enumerate(rows):
        tokens = torch.tensor(list(text.encode())[:LENGTH])
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return {"input_ids": ids, "attention_mask": mask}, torch.tensor([label for _, label in rows])


def batches(rows: Sequence[Any]) -> list[list[Any]]:
    """The steps of the plan: epoch after epoch, each with an order of its own."""
    found = []
    for place in range(NUM_STEPS * BATCH):
        epoch, offset = divmod(place, len(rows))
        drawn = np.random.PCG64(np.random.SeedSequence([SEED, epoch])).random_raw(len(rows))
        found.append(rows[int(np.argsort(drawn, kind="stable")[offset])])
    return [found[at : at + BATCH] for at in range(0, len(found), BATCH)]


def by_hand(plan: Path) -> ByHand:
    return trained_by_hand(
        AutoModelForSequenceClassification.from_pretrained(plan.parent / "model", dtype=torch.float64)
    )


Padded = Callable[[list[Any]], tuple[dict[str, Tensor], Tensor]]


def trained_by_hand(
    model: Any, rows: Sequence[Any] = ROWS, others: Sequence[Any] = OTHERS, padded: Padded = padded
) -> ByHand:
    """`padded` makes inputs and labels of rows: a class of each, or one of each token, -100 for none."""
    for module in model.modules():
        module.p = 0.0  # of every nn.Dropout
    model.train()
    found = ByHand(model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for step in batches(rows):
        logits, labels = outputs(model, step, padded)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        if not found.gradients:
            found.gradients = gradients_of(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.num_labels.append(len(labels))
        found.losses.append(loss.item())
        found.accuracies.append(accuracy(logits, labels))
    found.final = {name: one.detach().clone() for name, one in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        logits, labels = outputs(model, list(others), padded)
    found.evaluated = F.cross_entropy(logits, labels).item(), accuracy(logits, labels)
    return found


def outputs(model: Any, rows: list[Any], padded: Padded) -> tuple[Tensor, Tensor]:
    """The logits of all that has a class, and the classes."""
    inputs, labels = padded(rows)
    logits, labels = model(**inputs).logits.reshape(-1, NUM_LABELS), labels.flatten()
    return logits[labels != -100], labels[labels != -100]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows in which no other class has a larger logit."""
    classes = [row.index(max(row)) for row in logits.tolist()]
    return sum(map(int.__eq__, classes, labels.tolist())) / len(classes)


def assert_as_by_hand(record: Record, expected: ByHand, num_evaluated: int = len(OTHERS)) -> None:
    assert [one.labels for one in record.metrics] == expected.num_labels
    assert [one.loss for one in record.metrics] == pytest.approx(expected.losses, rel=1e-12)
    assert [one.custom["accuracy"] for one in record.metrics] == expected.accuracies
    assert len(set(expected.accuracies)) > 1
    assert_equal(record.gradients, expected.gradients, limit=1e-12)
    assert_equal(record.final, expected.final, limit=1e-9)
    (evaluation,) = record.metrics[-1].evaluations
    loss, share = expected.evaluated
    assert (evaluation.labels, evaluation.loss) == (num_evaluated, pytest.approx(loss, rel=1e-12))
    assert evaluation.accuracy == pytest.approx(share, rel=1e-12)


def graph_of(plan: Path, *settings: str) -> Graph:
    found = checked(plan, *settings)
    assert found.graph is not None
    return found.graph


def trained(plan: Path, *settings: str, run_folder: Path, stop_after: int | None = None) -> list[Record]:
    graph = graph_of(plan, *settings)
    task = Task(graph, plan.parent, run_folder, stop_after=stop_after)
    return run_ranks(train_rank, graph.world_size, task, init=False)


def assert_resumed_on_another_mesh(plan: Path, run_folder: Path, expected: ByHand) -> None:
    trained(plan, "mesh.dp_shard=2", run_folder=run_folder, stop_after=2)
    record = trained(plan, "mesh.tp=2", run_folder=run_folder)[0]
    assert record.first_step == 3
    assert_equal(record.final, expected.final, limit=1e-9)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], *, limit: float) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(one.abs().max()) for one in expected.values())
    for name, values in expected.items():
        assert float((found[name].detach() - values).abs().max()) < limit * largest, name


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_trains_as_a_loop_by_hand(plan: Path, tmp_path: Path, mesh: str) -> None:
    record, expected = trained(plan, *MESHES[mesh], run_folder=tmp_path)[0], by_hand(plan)
    assert_as_by_hand(record, expected)
    exported: Any = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "export/hf", dtype=torch.float64
    )
    assert_equal(dict(exported.named_parameters()), expected.final, limit=1e-9)


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(plan: Path, tmp_path: Path) -> None:
    assert_resumed_on_another_mesh(plan, tmp_path, by_hand(plan))
