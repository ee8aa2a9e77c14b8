"""A classifier of words trains on every mesh as a loop by hand.

The loop shares no code with planc: it joins the bytes of words itself, puts the class of each at its first
byte, hides padding by an attention mask, and draws the order from numpy's generator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification

from tests.dist.task_plan import LENGTH, MESHES
from tests.dist.test_classifier_training import (
    PADDING,
    ByHand,
    assert_as_by_hand,
    assert_equal,
    assert_resumed_on_another_mesh,
    trained,
    trained_by_hand,
    write_classifier,
    write_plan,
    write_rows,
)

Row = tuple[list[str], list[int]]

ROWS: tuple[Row, ...] = (
    (["the", "mesh", "holds"], [0, 2, 1]),
    (["every", "weight", "once,", "and"], [0, 2, 1, 0]),
    (["a"], [1]),
    (["ranks", "", "tp"], [2, 1, 0]),
    (["hello", "there"], [1, 1]),
    (["0", "1", "2", "3"], [0, 0, 2, 0]),
    (["zz", "\u00fcber"], [2, 1]),
)
"""One is too long for a sequence, one has a word without a token, and one has a character of two bytes."""
OTHERS: tuple[Row, ...] = ((["a", "mesh"], [1, 2]), (["b"], [0]), (["every", "rank", "sums"], [2, 0, 0]))
NUM_OTHERS = 6
MODELS = {
    "bert": ("tiny-bert", "BertForTokenClassification", "bert.encoder.layer.*"),
    "llama": ("tiny-llama", "LlamaForTokenClassification", "model.layers.*"),
}


@pytest.fixture(scope="module", params=MODELS)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    name, architecture, layers = MODELS[request.param]
    write_rows(folder, ROWS, OTHERS)
    write_classifier(folder, name, architecture)
    return write_plan(folder, layers=layers, task="token_classification")


def padded(rows: list[Row]) -> tuple[dict[str, Tensor], Tensor]:
    """The inputs of a model, and the class of each token, -100 for none."""
    ids = torch.full((len(rows), LENGTH), PADDING)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, (words, classes) in enumerate(rows):
        tokens: list[int] = []
        for word, number in zip(words, classes, strict=True):
            if word and len(tokens) < LENGTH:
                labels[row, len(tokens)] = number
            tokens += [*word.encode(), ord(" ")]
        kept = torch.tensor(tokens[:-1][:LENGTH])
        ids[row, : len(kept)], mask[row, : len(kept)] = kept, 1
    return {"input_ids": ids, "attention_mask": mask}, labels


def by_hand(plan: Path) -> ByHand:
    model = AutoModelForTokenClassification.from_pretrained(plan.parent / "model", dtype=torch.float64)
    return trained_by_hand(model, ROWS, OTHERS, padded)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_trains_as_a_loop_by_hand(plan: Path, tmp_path: Path, mesh: str) -> None:
    record, expected = trained(plan, *MESHES[mesh], run_folder=tmp_path)[0], by_hand(plan)
    assert len(set(expected.num_labels)) > 1
    assert_as_by_hand(record, expected, NUM_OTHERS)
    exported: Any = AutoModelForTokenClassification.from_pretrained(
        tmp_path / "export/hf", dtype=torch.float64
    )
    assert_equal(dict(exported.named_parameters()), expected.final, limit=1e-9)


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(plan: Path, tmp_path: Path) -> None:
    assert_resumed_on_another_mesh(plan, tmp_path, by_hand(plan))
