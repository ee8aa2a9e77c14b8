"""A classifier of pairs of texts trains on every mesh as a loop by hand.

The loop shares no code with planc: it puts two texts and a separator together itself, shortens the longer of
both token by token, gives types to models that take them, and hides padding by an attention mask.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from tests.dist.task_plan import LENGTH, MESHES, plan_text
from tests.dist.test_classifier_training import (
    MODELS,
    NUM_LABELS,
    PADDING,
    ByHand,
    assert_as_by_hand,
    assert_equal,
    assert_resumed_on_another_mesh,
    graph_of,
    trained,
    trained_by_hand,
    write_classifier,
)

Row = tuple[str, str, int]

ROWS: tuple[Row, ...] = (
    ("the mesh holds", "ranks", 0),
    ("every weight once, and", "then sums the gradients", 2),
    ("a", "b", 1),
    ("b", "a", 2),
    ("hello", "there is one more", 1),
    ("0 1 2 3 4 5 6 7 8 9", "z", 0),
    ("", "zz", 2),
)
"""Some are too long for a sequence: by the first text, by the second and by both. One text is empty."""
OTHERS: tuple[Row, ...] = (("a", "mesh", 1), ("b", "", 0), ("every rank sums", "over dp its gradients", 2))
SEPARATOR = 256


@pytest.fixture(scope="module", params=MODELS)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    name, architecture, layers = MODELS[request.param]
    for file, rows in (("rows", ROWS), ("others", OTHERS)):
        lines = [json.dumps({"premise": one, "hypothesis": two, "label": label}) for one, two, label in rows]
        (folder / f"{file}.jsonl").write_text("\n".join(lines), encoding="ascii")
    write_classifier(folder, name, architecture)
    source, other = (
        f'labeled("{file}.jsonl", field = "premise", pair = "hypothesis")' for file in ("rows", "others")
    )
    path, task = folder / "a.plan", f"sequence_classification(labels = {NUM_LABELS})"
    path.write_text(plan_text(task=task, layers=layers, source=source, other=other), encoding="utf-8")
    return path


def kept(first: bytes, second: bytes) -> tuple[bytes, bytes]:
    """Both texts without the end of the longer one, or of the first if they are equally long."""
    while len(first) + 1 + len(second) > LENGTH:
        first, second = (first[:-1], second) if len(first) >= len(second) else (first, second[:-1])
    return first, second


def padded(rows: list[Row], *, has_types: bool) -> tuple[dict[str, Tensor], Tensor]:
    """The inputs of a model, and the classes."""
    ids = torch.full((len(rows), LENGTH), PADDING)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (one, two, _) in enumerate(rows):
        first, second = kept(one.encode(), two.encode())
        tokens = torch.tensor([*first, SEPARATOR, *second])
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        types[row, len(first) + 1 : len(tokens)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, **({"token_type_ids": types} if has_types else {})}
    return inputs, torch.tensor([label for *_, label in rows])


def by_hand(plan: Path) -> ByHand:
    model = AutoModelForSequenceClassification.from_pretrained(plan.parent / "model", dtype=torch.float64)
    has_types = model.config.model_type == "bert"
    return trained_by_hand(model, ROWS, OTHERS, lambda rows: padded(rows, has_types=has_types))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_trains_as_a_loop_by_hand(plan: Path, tmp_path: Path, mesh: str) -> None:
    record, expected = trained(plan, *MESHES[mesh], run_folder=tmp_path)[0], by_hand(plan)
    assert_as_by_hand(record, expected)
    types = expected.gradients.get("bert.embeddings.token_type_embeddings.weight")
    assert types is None or bool((types.abs().sum(1) > 0).all())
    exported: Any = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "export/hf", dtype=torch.float64
    )
    assert_equal(dict(exported.named_parameters()), expected.final, limit=1e-9)


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(plan: Path, tmp_path: Path) -> None:
    assert_resumed_on_another_mesh(plan, tmp_path, by_hand(plan))


@pytest.mark.slow
def test_without_types_an_encoder_learns_something_else(plan: Path) -> None:
    """The comparison would show types that are left out."""
    model = AutoModelForSequenceClassification.from_pretrained(plan.parent / "model", dtype=torch.float64)
    if model.config.model_type != "bert":
        assert all(op.token_types == 0 for op in graph_of(plan).setup if op.name == "data.open_labeled")  # type: ignore[union-attr]
        return
    other = trained_by_hand(model, ROWS, OTHERS, lambda rows: padded(rows, has_types=False))
    assert abs(other.losses[0] - by_hand(plan).losses[0]) > 1e-6
