"""Adapters of classifiers and of masked language models, on every mesh as loops by hand with the adapters
written out. What is trained next to them is exported with them, and read again."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from tests.dist import test_masked_training as masked
from tests.dist import test_new_heads as new_heads
from tests.dist.adapters_by_hand import MERGED, WEIGHTS, adapt, blocks
from tests.dist.task_plan import MESHES
from tests.dist.test_adapter_start import PREFIX, write_peft
from tests.dist.test_classifier_training import (
    OTHERS,
    ByHand,
    assert_as_by_hand,
    assert_equal,
    padded,
    trained,
    trained_by_hand,
    written,
)

APART = {"bert": ("classifier", "bert.pooler"), "llama": ("score",)}
"""What is trained whole."""
ADAPTED = {"bert": ("query", "value", "intermediate.dense"), "llama": ("q_proj", "v_proj", "down_proj")}


masked_folder = masked.folder


def classifier(plan: Path) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(plan.parent / "model", dtype=torch.float64)


def with_adapters(plan: Path, model: Any, kind: str) -> Path:
    """The plan with adapters, whose directory is for the model."""
    adapters = adapt(model, ADAPTED[kind], apart=APART[kind])
    write_peft(plan.parent / "adapters", {f"{PREFIX}{name}": one for name, one in adapters.items()})
    text = plan.read_text(encoding="utf-8").replace('export "hf" {', MERGED)
    plan.write_text(text + blocks(ADAPTED[kind], apart=APART[kind]), encoding="utf-8")
    return plan


@pytest.fixture(scope="module", params=APART)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def plan(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = written(tmp_path_factory.mktemp(kind), kind)
    return with_adapters(path, classifier(path), kind)


def logits_of(model: Any) -> dict[str, Tensor]:
    inputs, _ = padded(list(OTHERS))
    with torch.no_grad():
        return {"logits": model.eval()(**inputs).logits}


def by_hand(plan: Path, kind: str) -> ByHand:
    model = classifier(plan)
    adapt(model, ADAPTED[kind], apart=APART[kind])
    return trained_by_hand(model)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_trains_as_a_loop_by_hand(plan: Path, kind: str, tmp_path: Path, mesh: str) -> None:
    record, expected = trained(plan, *MESHES[mesh], run_folder=tmp_path)[0], by_hand(plan, kind)
    assert_as_by_hand(record, expected)
    saved = load_file(tmp_path / "export/adapter" / WEIGHTS)
    names = {name.removeprefix(PREFIX): value for name, value in saved.items()}
    assert_equal(names, {name: expected.final[name] for name in expected.gradients}, limit=1e-9)
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    assert_equal(logits_of(merged), logits_of(expected.model), limit=1e-8)


@pytest.mark.slow
def test_a_run_begins_with_what_another_exported(plan: Path, tmp_path: Path) -> None:
    """The adapters, and the head next to them."""
    before = trained(plan, "mesh.dp_shard=2", run_folder=tmp_path / "first")[0]
    shutil.copytree(tmp_path / "first/export/adapter", plan.parent / "exported")
    unmoved = ('adapter.start="exported"', "optimizer.lr=1e-30", "train.steps=1")
    after = trained(plan, *unmoved, "mesh.tp=2", run_folder=tmp_path / "second")[0]
    assert_equal(after.final, before.final, limit=1e-12)


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(plan: Path, kind: str, tmp_path: Path) -> None:
    trained(plan, "mesh.dp_shard=2", run_folder=tmp_path, stop_after=2)
    record = trained(plan, "mesh.tp=2", run_folder=tmp_path)[0]
    assert record.first_step == 3
    assert_equal(record.final, by_hand(plan, kind).final, limit=1e-9)


@pytest.mark.slow
def test_peft_loads_an_export_with_its_head(plan: Path, kind: str, tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft", reason="peft is not installed")
    trained(plan, *MESHES["dp2 tp2"], run_folder=tmp_path)
    loaded = peft.PeftModel.from_pretrained(classifier(plan), tmp_path / "export/adapter")
    assert_equal(logits_of(loaded), logits_of(by_hand(plan, kind).model), limit=1e-8)
    loaded.save_pretrained(tmp_path / "again")
    ours, theirs = (load_file(tmp_path / name / WEIGHTS) for name in ("export/adapter", "again"))
    assert_equal(theirs, ours, limit=1e-12)


@pytest.mark.slow
def test_a_new_head_trains_next_to_adapters(tmp_path: Path) -> None:
    """The base is a causal language model's; the head is drawn, and exported with the adapters."""
    path = new_heads.written(tmp_path, "causal")
    start = new_heads.start_of(path, tmp_path / "start")
    model = new_heads.classifier(path, start)
    with_adapters(path, model, "llama")
    expected = trained_by_hand(model)
    record = trained(path, *MESHES["dp2 tp2"], run_folder=tmp_path / "run")[0]
    assert_as_by_hand(record, expected)
    saved = load_file(tmp_path / "run/export/adapter" / WEIGHTS)
    assert_equal(
        {"score.weight": saved[f"{PREFIX}score.weight"]},
        {"score.weight": expected.final["score.weight"]},
        limit=1e-9,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_masked_models_train_as_a_loop_by_hand(masked_folder: Path, tmp_path: Path, mesh: str) -> None:
    layers, folder = ADAPTED["bert"], masked_folder
    adapters: dict[str, Tensor] = {}
    prepare = partial(adapt, layers=layers, apart=())
    expected = masked.by_hand(folder, prepare=lambda model: adapters.update(prepare(model)))
    write_peft(folder / "adapters", {f"{PREFIX}{name}": one for name, one in adapters.items()})
    text = masked.PLAN.replace('export "hf" {', MERGED) + blocks(layers, apart=())
    record = masked.trained(folder, *MESHES[mesh], run_folder=tmp_path, text=text)[0]
    assert [one.loss for one in record.metrics] == pytest.approx(expected.losses, rel=1e-12)
    assert_equal(record.gradients, expected.gradients, limit=1e-12)
    assert_equal(record.final, expected.final, limit=1e-9)
    merged = AutoModelForMaskedLM.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    assert_equal(logits_of(merged), logits_of(expected.model), limit=1e-8)


@pytest.mark.slow
def test_peft_loads_adapters_of_a_masked_model(masked_folder: Path, tmp_path: Path) -> None:
    """peft has no name for the task."""
    peft: Any = pytest.importorskip("peft", reason="peft is not installed")
    layers = ADAPTED["bert"]
    base: Any = AutoModelForMaskedLM.from_pretrained(masked_folder / "model", dtype=torch.float64)
    text = masked.PLAN.replace('export "hf" {', MERGED) + blocks(layers, apart=())
    text = text.replace('  start = "adapters"\n', "")
    masked.trained(masked_folder, *MESHES["dp2 tp2"], run_folder=tmp_path, text=text)
    merged = AutoModelForMaskedLM.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "export/adapter")
    assert_equal(logits_of(loaded), logits_of(merged), limit=1e-8)
