"""An encoder-decoder trains on every mesh as a loop by hand: losses, gradients, evaluations, exports.

The loop shares no code with planc: it builds the class by transformers, which makes the decoder's tokens from
labels, gives it each row alone, without padding, and draws the order from numpy's generator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from planc.verify.ranks import Record
from tests.dist.adapters_by_hand import MERGED, WEIGHTS, adapt, blocks
from tests.dist.task_plan import LENGTH, MESHES, gradients_of, plan_text
from tests.dist.test_adapter_start import PREFIX, write_peft
from tests.dist.test_classifier_training import (
    PADDING,
    ByHand,
    assert_equal,
    assert_resumed_on_another_mesh,
    batches,
    trained,
    write_model,
)
from tests.plans import PLANS

END = 256
Row = tuple[str, str]
ROWS: tuple[Row, ...] = (
    ("what is a mesh", "ranks in rows"),
    ("tp", "every weight is sharded, and longer than that"),
    ("a", "b"),
    ("does the order of a long input matter", "it does"),
    ("0 1 2 3 4", "5 6"),
    ("zz", "z"),
    ("hello there", "fifteen letters"),
)
OTHERS: tuple[Row, ...] = (("a mesh", "of ranks"), ("b", "a"), ("every rank", "sums its gradients"))
BART = json.loads((PLANS / "models/tiny-bart-encoder-decoder/config.json").read_text(encoding="utf-8"))
T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 96,
    "d_kv": 16,
    "d_model": 64,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": True,
    "model_type": "t5",
    "num_decoder_layers": 2,
    "num_heads": 4,
    "num_layers": 3,
    "pad_token_id": PADDING,
    "vocab_size": 264,
}
MARIAN = BART | {"architectures": ["MarianMTModel"], "model_type": "marian"}
"""Its files lack the sinusoids of its positions."""
MODELS = {
    "bart": (BART, "", "model.{encoder,decoder}.layers.*"),
    "marian": (MARIAN, "", "model.{encoder,decoder}.layers.*"),
    "t5": (T5, "\n  attention = eager", "{encoder,decoder}.block.*"),
}
"""With planc's attention, and with its own code, which adds learned biases of distances to the scores."""


def write_rows(folder: Path) -> None:
    for file, rows in (("rows", ROWS), ("others", OTHERS)):
        lines = [json.dumps({"text": text, "summary": target}) for text, target in rows]
        (folder / f"{file}.jsonl").write_text("\n".join(lines), encoding="ascii")


def written(folder: Path, model: str) -> Path:
    config, settings, layers = MODELS[model]
    source, other = (
        f'mapped("{file}.jsonl", input = "text", target = "summary")' for file in ("rows", "others")
    )
    write_rows(folder)
    write_model(folder / "model", config)
    path = folder / "a.plan"
    text = plan_text(task=f"seq2seq_lm{settings}", layers=layers, source=source, other=other)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=MODELS)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp(request.param), request.param)


def target_of(text: str) -> list[int]:
    return [*text.encode(), END][:LENGTH]


def loss_of(model: Any, rows: Sequence[Row]) -> tuple[Tensor, int]:
    """The mean over the tokens of all targets, and their number."""
    total, number = torch.zeros((), dtype=torch.float64), 0
    for text, target in rows:
        tokens, labels = (torch.tensor([ids]) for ids in (list(text.encode())[:LENGTH], target_of(target)))
        total = total + model(input_ids=tokens, labels=labels).loss * labels.numel()
        number += labels.numel()
    return total / number, number


def by_hand(plan: Path, prepare: Callable[[Any], object] = id) -> ByHand:
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(plan.parent / "model", dtype=torch.float64)
    for module in model.modules():
        module.p = 0.0  # of every nn.Dropout
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # of code that calls the function
    prepare(model)
    model.train()
    found = ByHand(model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for step in batches(ROWS):
        loss, number = loss_of(model, step)
        loss.backward()  # type: ignore[no-untyped-call]
        found.gradients = found.gradients or gradients_of(model)
        found.norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
        found.num_labels.append(number)
        found.losses.append(loss.item())
    found.final = {name: one.detach().clone() for name, one in model.named_parameters()}
    with torch.no_grad():
        loss, _ = loss_of(model.eval(), OTHERS)
    found.evaluated = loss.item(), 0.0
    return found


def assert_as_by_hand(record: Record, expected: ByHand) -> None:
    assert [one.labels for one in record.metrics] == expected.num_labels
    assert len(set(expected.num_labels)) > 1
    assert [one.loss for one in record.metrics] == pytest.approx(expected.losses, rel=1e-12)
    assert [one.grad_norm for one in record.metrics] == pytest.approx(expected.norms, rel=1e-12)
    assert_equal(record.gradients, expected.gradients, limit=1e-12)
    assert_equal(record.final, expected.final, limit=1e-9)
    (evaluation,) = record.metrics[-1].evaluations
    assert evaluation.loss == pytest.approx(expected.evaluated[0], rel=1e-12)
    assert evaluation.labels == sum(len(target_of(target)) for _, target in OTHERS)


QUICK = {("bart", "dp2 tp2")}


@pytest.mark.parametrize(
    "model, mesh",
    [
        pytest.param(model, mesh, marks=() if (model, mesh) in QUICK else pytest.mark.slow)
        for model in MODELS
        for mesh in MESHES
    ],
)
def test_every_mesh_trains_as_a_loop_by_hand(model: str, mesh: str, tmp_path: Path) -> None:
    plan = written(tmp_path, model)
    record, expected = trained(plan, *MESHES[mesh], run_folder=tmp_path / "run")[0], by_hand(plan)
    assert_as_by_hand(record, expected)
    exported = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run/export/hf", dtype=torch.float64)
    assert_equal(dict(exported.named_parameters()), expected.final, limit=1e-9)


ADAPTED = {"bart": ("q_proj", "v_proj", "fc2"), "marian": ("k_proj", "fc1"), "t5": ("q", "v", "wo")}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_adapters_train_as_a_loop_by_hand(plan: Path, tmp_path: Path, mesh: str) -> None:
    text, other = plan.read_text(encoding="utf-8"), plan.with_name("adapted.plan")
    config = json.loads((plan.parent / "model/config.json").read_text(encoding="utf-8"))
    layers = ADAPTED[config["model_type"]]
    if config["model_type"] == "t5" and "tp" in mesh:
        # Its projections of queries and values are gathered there, which no adapter's are.
        layers = ("wi_1", "wo")
    adapters: dict[str, Tensor] = {}
    prepare = partial(adapt, layers=layers, apart=())
    expected = by_hand(plan, prepare=lambda model: adapters.update(prepare(model)))
    write_peft(plan.parent / "adapters", {f"{PREFIX}{name}": one for name, one in adapters.items()})
    other.write_text(text.replace('export "hf" {', MERGED) + blocks(layers, apart=()), encoding="utf-8")
    assert_as_by_hand(trained(other, *MESHES[mesh], run_folder=tmp_path)[0], expected)
    saved = load_file(tmp_path / "export/adapter" / WEIGHTS)
    names = {name.removeprefix(PREFIX): value for name, value in saved.items()}
    assert_equal(names, {name: expected.final[name] for name in expected.gradients}, limit=1e-9)
    settings = json.loads((tmp_path / "export/adapter/adapter_config.json").read_text(encoding="utf-8"))
    assert settings["task_type"] == "SEQ_2_SEQ_LM"
    merged: Any = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    with torch.no_grad():
        loss, _ = loss_of(merged.eval(), OTHERS)
    assert loss.item() == pytest.approx(expected.evaluated[0], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_layers_may_be_recomputed(plan: Path, tmp_path: Path, mode: str) -> None:
    text, other = plan.read_text(encoding="utf-8"), plan.with_name(f"{mode}.plan")
    layers = next(layers for _, _, layers in MODELS.values() if f'"{layers}"' in text)
    other.write_text(f'{text}\nactivation_checkpoint {{\n  "{layers}" -> {mode}\n}}\n', encoding="utf-8")
    assert_as_by_hand(trained(other, "mesh.tp=2", run_folder=tmp_path)[0], by_hand(plan))


@pytest.mark.slow
def test_units_ahead_are_gathered_once(plan: Path, tmp_path: Path) -> None:
    """A run ends if a step sends more than its graph predicts."""
    record = trained(plan, "mesh.dp_shard=2", "fsdp.prefetch=2", run_folder=tmp_path)[0]
    assert_as_by_hand(record, by_hand(plan))


@pytest.mark.slow
def test_replicas_train_as_a_loop_by_hand(plan: Path, tmp_path: Path) -> None:
    settings = ("mesh.dp_replicate=2", "fsdp.replicate_on=dp_replicate")
    assert_as_by_hand(trained(plan, *settings, run_folder=tmp_path)[0], by_hand(plan))


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(plan: Path, tmp_path: Path) -> None:
    assert_resumed_on_another_mesh(plan, tmp_path, by_hand(plan))
