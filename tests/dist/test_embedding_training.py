"""An embedding model trains on every mesh as a loop by hand: losses, gradients, evaluations, exports.

The loop shares no code with planc: it builds the model by transformers, pads the bytes itself, hides padding
by an attention mask, sums the hidden states of each text token by token, and compares each query with one
positive after the other.
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
from transformers import AutoModel

from planc.verify.ranks import Record
from tests.dist.adapters_by_hand import MERGED, WEIGHTS, adapt, blocks
from tests.dist.task_plan import BATCH, LENGTH, MESHES, gradients_of, plan_text
from tests.dist.test_adapter_start import PREFIX, write_peft
from tests.dist.test_classifier_training import (
    PADDING,
    ByHand,
    assert_as_by_hand,
    assert_equal,
    assert_resumed_on_another_mesh,
    batches,
    trained,
    write_model,
)
from tests.plans import PLANS

GROUP, TEMPERATURE = 2, 0.1
Row = tuple[str, str]
ROWS: tuple[Row, ...] = (
    ("what is a mesh", "ranks in rows"),
    ("tp", "every weight is sharded, and longer than that"),
    ("a", "b"),
    ("does the order of a long query matter", "it does"),
    ("0 1 2 3 4", "5 6"),
    ("zz", "z"),
    ("hello there", "one more"),
)
OTHERS: tuple[Row, ...] = (("a mesh", "of ranks"), ("b", "a"), ("every rank", "sums its gradients"))
"""With groups of two, the last one has no negatives."""
MODELS = {
    "bert mean": ("tiny-bert", "BertModel", "encoder.layer.*", "mean"),
    "bert cls": ("tiny-bert", "BertForMaskedLM", "encoder.layer.*", "cls"),
    "llama last": ("tiny-llama", "LlamaForCausalLM", "layers.*", "last"),
}
"""Encoders with a pooler and with another head, and a decoder, none of which is trained."""
SETTINGS = {
    **MESHES,
    "replicas": ("mesh.dp_replicate=2", "fsdp.replicate_on=dp_replicate"),
    "two groups at once": (f"data.micro_batch={4 * GROUP}",),
}


def write_rows(folder: Path) -> None:
    for file, rows in (("rows", ROWS), ("others", OTHERS)):
        lines = [json.dumps({"question": query, "answer": positive}) for query, positive in rows]
        (folder / f"{file}.jsonl").write_text("\n".join(lines), encoding="ascii")


def write_plan(folder: Path, *, layers: str, pooling: str) -> Path:
    source, other = (
        f'matched("{file}.jsonl", query = "question", positive = "answer")' for file in ("rows", "others")
    )
    text = plan_text(task=f"embedding(pooling = {pooling})", layers=layers, source=source, other=other)
    loss = f"loss = contrastive(temperature = {TEMPERATURE}, group = {GROUP})"
    text = text.replace("micro_batch = 2", f"micro_batch = {2 * GROUP}")
    text = text.replace(f"= {BATCH * LENGTH}", f"= {2 * BATCH * LENGTH}\n  {loss}")
    path = folder / "a.plan"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=MODELS)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, architecture, layers, pooling = MODELS[request.param]
    folder = tmp_path_factory.mktemp(pooling)
    write_rows(folder)
    config = json.loads((PLANS / "models" / name / "config.json").read_text(encoding="utf-8"))
    write_model(folder / "model", config | {"architectures": [architecture], "pad_token_id": PADDING})
    return write_plan(folder, layers=layers, pooling=pooling)


def vectors(model: Any, texts: Sequence[str], pooling: str) -> list[Tensor]:
    """The vector of each text, as the model sees it in a padded batch."""
    tokens = [list(text.encode())[:LENGTH] for text in texts]
    ids = torch.tensor([one + [PADDING] * (LENGTH - len(one)) for one in tokens])
    mask = torch.tensor([[1] * len(one) + [0] * (LENGTH - len(one)) for one in tokens])
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    found = []
    for row, one in zip(states, tokens, strict=True):
        own = [row[place] for place in range(len(one))]
        found.append({"mean": sum(own[1:], own[0]) / len(own), "cls": own[0], "last": own[-1]}[pooling])
    return found


Compare = Callable[[Tensor, Tensor], Tensor]


def cosine(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum() / ((one * one).sum().sqrt() * (other * other).sum().sqrt())


def loss_of(
    model: Any,
    rows: Sequence[Row],
    pooling: str,
    *,
    group: int = GROUP,
    temperature: float = TEMPERATURE,
    compare: Compare = cosine,
) -> tuple[Tensor, float]:
    """The mean loss of the queries, and the share of them whose own positive is the nearest of its group."""
    found = vectors(model, [text for row in rows for text in row], pooling)
    losses, right = [], 0
    for number in range(len(rows)):
        first = number - number % group
        scores = [
            compare(found[2 * number], found[2 * other + 1]) / temperature
            for other in range(first, min(first + group, len(rows)))
        ]
        own = scores[number - first]
        losses.append(torch.stack([score.exp() for score in scores]).sum().log() - own)
        right += own.item() == max(score.item() for score in scores)
    return torch.stack(losses).mean(), right / len(rows)


def pooling_of(plan: Path) -> str:
    text = plan.read_text(encoding="utf-8")
    return next(pooling for pooling in ("mean", "cls", "last") if f"pooling = {pooling}" in text)


def by_hand(plan: Path, prepare: Callable[[Any], object] = id, **settings: Any) -> ByHand:
    pooling = pooling_of(plan)
    model = AutoModel.from_pretrained(plan.parent / "model", dtype=torch.float64)
    if hasattr(model, "pooler"):
        model.pooler = None
    for module in model.modules():
        module.p = 0.0  # of every nn.Dropout
    prepare(model)
    model.train()
    found = ByHand(model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for step in batches(ROWS):
        loss, accuracy = loss_of(model, step, pooling, **settings)
        loss.backward()  # type: ignore[no-untyped-call]
        found.gradients = found.gradients or gradients_of(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        found.norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
        found.num_labels.append(len(step))
        found.losses.append(loss.item())
        found.accuracies.append(accuracy)
    found.final = {name: one.detach().clone() for name, one in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        loss, accuracy = loss_of(model, OTHERS, pooling, **settings)
    found.evaluated = loss.item(), accuracy
    return found


def assert_norms(record: Record, expected: ByHand) -> None:
    assert [one.grad_norm for one in record.metrics] == pytest.approx(expected.norms, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_mesh_trains_as_a_loop_by_hand(plan: Path, tmp_path: Path, setting: str) -> None:
    record, expected = trained(plan, *SETTINGS[setting], run_folder=tmp_path)[0], by_hand(plan)
    assert_as_by_hand(record, expected, num_evaluated=len(OTHERS))
    assert_norms(record, expected)
    exported: Any = AutoModel.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    if hasattr(exported, "pooler"):
        exported.pooler = None
    assert_equal(dict(exported.named_parameters()), expected.final, limit=1e-9)
    loss, _ = loss_of(exported.eval(), OTHERS, pooling_of(plan))
    assert loss.item() == pytest.approx(expected.evaluated[0], rel=1e-9)


@pytest.mark.slow
def test_replicas_may_be_whole(plan: Path, tmp_path: Path) -> None:
    text, other = plan.read_text(encoding="utf-8"), plan.with_name("whole.plan")
    before, _, after = text.partition("fsdp on dp_shard {")
    other.write_text(before + after.partition("}\n")[2], encoding="utf-8")
    record = trained(other, "mesh.dp_replicate=2", run_folder=tmp_path)[0]
    assert_as_by_hand(record, by_hand(plan), num_evaluated=len(OTHERS))


@pytest.mark.slow
def test_layers_may_be_recomputed(plan: Path, tmp_path: Path) -> None:
    text = plan.read_text(encoding="utf-8")
    layers = next(layers for _, _, layers, _ in MODELS.values() if f'"{layers}"' in text)
    other = plan.with_name("recomputed.plan")
    other.write_text(f'{text}\nactivation_checkpoint {{\n  "{layers}" -> full\n}}\n', encoding="utf-8")
    record = trained(other, "mesh.dp_shard=2", run_folder=tmp_path)[0]
    assert_as_by_hand(record, by_hand(plan), num_evaluated=len(OTHERS))


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(plan: Path, tmp_path: Path) -> None:
    assert_resumed_on_another_mesh(plan, tmp_path, by_hand(plan))


ADAPTED = {"bert": ("query", "value", "intermediate.dense"), "llama": ("q_proj", "v_proj", "down_proj")}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_adapters_train_as_a_loop_by_hand(plan: Path, tmp_path: Path, mesh: str) -> None:
    text, other = plan.read_text(encoding="utf-8"), plan.with_name("adapted.plan")
    layers = ADAPTED["llama" if pooling_of(plan) == "last" else "bert"]
    adapters: dict[str, Tensor] = {}
    prepare = partial(adapt, layers=layers, apart=())
    expected = by_hand(plan, prepare=lambda model: adapters.update(prepare(model)))
    write_peft(plan.parent / "adapters", {f"{PREFIX}{name}": one for name, one in adapters.items()})
    other.write_text(text.replace('export "hf" {', MERGED) + blocks(layers, apart=()), encoding="utf-8")
    record = trained(other, *MESHES[mesh], run_folder=tmp_path)[0]
    assert_as_by_hand(record, expected, num_evaluated=len(OTHERS))
    saved = load_file(tmp_path / "export/adapter" / WEIGHTS)
    names = {name.removeprefix(PREFIX): value for name, value in saved.items()}
    assert_equal(names, {name: expected.final[name] for name in expected.gradients}, limit=1e-9)
    merged: Any = AutoModel.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    loss, _ = loss_of(merged.eval(), OTHERS, pooling_of(plan))
    assert loss.item() == pytest.approx(expected.evaluated[0], rel=1e-9)


FAULTS: dict[str, dict[str, Any]] = {
    "another group": {"group": 2 * GROUP},
    "the temperature twice": {"temperature": TEMPERATURE**2},
    "vectors of any length": {"compare": lambda one, other: (one * other).sum()},
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_shows(fault: str, plan: Path) -> None:
    found, expected = by_hand(plan, **FAULTS[fault]), by_hand(plan)
    assert abs(found.losses[0] - expected.losses[0]) > 1e-3
    with pytest.raises(AssertionError):
        assert_equal(found.gradients, expected.gradients, limit=1e-3)
