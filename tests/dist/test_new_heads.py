"""A new classifier's head on a pretrained model: drawn, equal on every mesh, and trained as a loop by hand.

The base is loaded from files of another class. The loop starts from transformers' own classifier with the
weights of the files, and with those that planc drew for the head.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from planc.api import check_plan
from planc.graph.graph import Graph
from tests.dist.task_plan import MESHES
from tests.dist.test_classifier_training import (
    NUM_LABELS,
    PADDING,
    ByHand,
    assert_as_by_hand,
    assert_equal,
    graph_of,
    trained,
    trained_by_hand,
    write_model,
    write_plan,
    write_rows,
)
from tests.patience import WAIT_SECONDS
from tests.plans import PLANS

POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
CLASSIFIER = ("classifier.weight", "classifier.bias")
BASES = {
    "masked": ("tiny-bert", "BertForMaskedLM", "bert.encoder.layer.*", (*POOLER, *CLASSIFIER)),
    "without a head": ("tiny-bert", "BertModel", "bert.encoder.layer.*", CLASSIFIER),
    "causal": ("tiny-llama", "LlamaForCausalLM", "model.layers.*", ("score.weight",)),
}
"""The class of the files, and what a classifier has beyond it. BertForMaskedLM has no pooler."""
NAMES = ("bad", "plain", "good")
UNMOVED = ("optimizer.lr=1e-30", "train.steps=1")
"""A step that changes no weight in float64 but those that are 0."""


def written(folder: Path, base: str) -> Path:
    (folder / "base").write_text(base, encoding="utf-8")
    name, architecture, layers, _ = BASES[base]
    write_rows(folder)
    config = json.loads((PLANS / "models" / name / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": [architecture], "pad_token_id": PADDING}
    write_model(folder / "model", config)
    path = write_plan(folder, layers=layers)
    labels = f"labels = {NUM_LABELS}"
    text = path.read_text(encoding="utf-8").replace(labels, f"{labels}, names = {json.dumps(NAMES)}")
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=BASES)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("head"), request.param)


def head_of(plan: Path) -> tuple[str, ...]:
    return BASES[(plan.parent / "base").read_text(encoding="utf-8")][3]


def start_of(plan: Path, run_folder: Path, *settings: str) -> dict[str, Tensor]:
    """The weights that a run starts from."""
    return trained(plan, *UNMOVED, *settings, run_folder=run_folder)[0].final


def classifier(plan: Path, start: dict[str, Tensor]) -> Any:
    """transformers' own, with the weights of the files, and those that planc drew for the head."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        plan.parent / "model", num_labels=NUM_LABELS, dtype=torch.float64
    )
    stored = load_file(plan.parent / "model" / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # BertModel's own files have its names without `bert.`.
            found = stored.get(name, stored.get(name.partition(".")[2]))
            assert (found is None) == (name in head_of(plan)), name
            if found is None:
                parameter.copy_(start[name])
            else:
                assert torch.equal(parameter, found.double()), name
    return model


def expected(plan: Path, start: dict[str, Tensor]) -> ByHand:
    return trained_by_hand(classifier(plan, start))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_trains_as_a_loop_by_hand(plan: Path, tmp_path: Path, mesh: str) -> None:
    by_hand = expected(plan, start_of(plan, tmp_path / "start"))
    record = trained(plan, *MESHES[mesh], run_folder=tmp_path / "run")[0]
    assert_as_by_hand(record, by_hand)
    folder = tmp_path / "run" / "export/hf"
    exported: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64)
    assert exported.config.architectures == [type(exported).__name__]
    assert exported.config.id2label == dict(enumerate(NAMES))
    assert_equal(dict(exported.named_parameters()), by_hand.final, limit=1e-9)


@pytest.mark.slow
def test_a_head_is_drawn_by_its_places(plan: Path, tmp_path: Path) -> None:
    start = start_of(plan, tmp_path / "one")
    divided = start_of(plan, tmp_path / "two", "mesh.dp_shard=2", "mesh.tp=2")
    other = start_of(plan, tmp_path / "other", "model.seed=1")
    for values in (start, divided, other):
        for name, one in values.items():
            values[name] = one.where(one.abs() > 1e-20, 0)
    for name in start:
        assert torch.equal(start[name], divided[name]), name
        is_drawn = name in head_of(plan) and name.endswith("weight")
        assert torch.equal(start[name], other[name]) != is_drawn, name
        if is_drawn:
            assert float(start[name].std()) == pytest.approx(0.02, rel=0.25), name
            assert len(start[name].unique()) == start[name].numel(), name


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(plan: Path, tmp_path: Path) -> None:
    start = start_of(plan, tmp_path / "start")
    trained(plan, "mesh.dp_shard=2", run_folder=tmp_path / "run", stop_after=2)
    record = trained(plan, "mesh.tp=2", run_folder=tmp_path / "run")[0]
    assert record.first_step == 3
    assert_equal(record.final, expected(plan, start).final, limit=1e-9)


@pytest.mark.slow
def test_a_frozen_base_leaves_the_new_head_to_checkpoints(tmp_path: Path) -> None:
    """Linear probing: the drawn pooler is frozen too, and no file has it."""
    path = written(tmp_path, "masked")
    text = path.read_text(encoding="utf-8") + '\nfreeze {\n  "bert" -> frozen\n}\n'
    path.write_text(text.replace("tensor_parallel on tp {\n  auto(solve)\n}\n", ""), encoding="utf-8")
    whole = trained(path, run_folder=tmp_path / "whole")[0]
    trained(path, "mesh.dp_shard=2", run_folder=tmp_path / "run", stop_after=2)
    record = trained(path, run_folder=tmp_path / "run")[0]
    assert record.first_step == 3
    assert_equal(record.final, whole.final, limit=1e-12)


def test_the_plan_states_what_is_new(plan: Path) -> None:
    graph = graph_of(plan)
    (build,) = (op for op in graph.setup if op.name == "model.build_classifier")
    assert build.labels == NUM_LABELS  # type: ignore[attr-defined]
    assert load_of(graph).new == head_of(plan)


def load_of(graph: Graph) -> Any:
    """The op that reads the files."""
    (load,) = (op for op in graph.setup if op.name == "weights.load_base")
    return load


def test_the_head_of_another_task_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "masked")
    file = tmp_path / "model" / "config.json"
    file.write_text(file.read_text().replace("BertForMaskedLM", "BertForTokenClassification"))
    (found,) = check_plan(path).diagnostics
    assert found.code.code == "P216"
    assert "BertForTokenClassification, which has the head of another task" in found.primary.text


def test_a_base_that_lacks_more_than_the_head_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "without a head")
    file = tmp_path / "model" / "model.safetensors"
    save_file({name: one for name, one in load_file(file).items() if "pooler" not in name}, file)
    command = [sys.executable, "-m", "planc", "run", str(path), "--run-dir", str(tmp_path / "run")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert refused.returncode == 2
    assert "missing bert.pooler.dense.weight, bert.pooler.dense.bias" in refused.stderr
    assert 'help: write `"architectures": ["BertForMaskedLM"]` in ' in refused.stderr
    # What the help says trains.
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace("BertModel", "BertForMaskedLM"))
    assert load_of(graph_of(path)).new == (*POOLER, *CLASSIFIER)
    assert trained(path, run_folder=tmp_path / "mended")[0].final
