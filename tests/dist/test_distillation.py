"""Distillation on meshes against one process in plain torch, in float64: loss, gradients, weights.

The teacher's log-probabilities are computed and stored here a second time, as are documents, order and loss.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from planc.estimate.loss import stored_sequence_bytes
from planc.graph.sources import training_data
from planc.runtime.data.open import open_data
from planc.runtime.data.ops import data_spec
from planc.verify.compare import disagreements, worst_gradient, worst_relative
from tests.dist.pool import run_ranks
from tests.dist.test_preferences import _Wide, wide_rank, widen
from tests.inventories import save_inventory
from tests.models.independent import gradients_of
from tests.parity import cases
from tests.parity.cases import (
    ALL_8,
    CP2_DP2,
    PP2_DP2,
    TP2_DP2,
    TP2_REPLICATE2,
    Case,
    compile_case,
    make_workspace,
)
from tests.parity.ranks import Record, Task
from tests.parity.reference import _factor, _groups, _order, write_weights
from tests.parity.test_adapter_parity import QV, SCALES, WithLora

TOLERANCE = 1e-10
TOP_K, END = 5, 256
_MADE_UP = -1.5
LENGTH = cases.SEQUENCE_LENGTH
TEXTS, ANSWERS = "texts.jsonl", "answers.jsonl"
TEACHERS = {"llama": "teacher", "llama-uneven": "teacher-uneven"}
_TEACHER = {
    **cases.MODELS["qwen3"],
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "initializer_range": 0.3,
}
SOURCES = {
    "attend": f'data.source=jsonl("{TEXTS}")',
    "isolate": f'data.source=jsonl("{TEXTS}")',
    "none": f'data.source=chat("{ANSWERS}", template = none)',
}


def loss_setting(model: str, packing: str, temperature: float, weight: float) -> str:
    return (
        f'train.loss=distillation(teacher = "{TEACHERS[model]}", logits = "stored-{model}-{packing}", '
        f"top_k = {TOP_K}, temperature = {temperature}, weight = {weight})"
    )


@dataclass(frozen=True)
class Taught:
    """A case, its data's packing, and the loss's temperature and weight."""

    case: Case
    packing: str = "attend"
    temperature: float = 2.0
    weight: float = 0.7

    @property
    def name(self) -> str:
        return f"{self.case.name} {self.packing} T={self.temperature} w={self.weight}"

    @property
    def settled(self) -> Case:
        loss = loss_setting(self.case.model, self.packing, self.temperature, self.weight)
        data = SOURCES[self.packing], f"data.packing={self.packing}"
        settings = (*data, loss, "model.dtype=float64", *self.case.settings)
        return replace(self.case, weights="pretrained", settings=settings)


QUICK = (
    Taught(Case("TP2", "257 rows", {"tp": 2}, model="llama-uneven", micro_batch=4)),
    Taught(Case("1", micro_batch=4), packing="none", temperature=1.0, weight=0.3),
)
CASES = (
    Taught(Case("1", "weight 1", micro_batch=8), weight=1.0),
    Taught(Case("DP2", "accumulate 2", {"dp_shard": 2}, micro_batch=2), packing="none"),
    Taught(Case("DP4", "HSDP 2x2", {"dp_replicate": 2, "dp_shard": 2}), packing="isolate"),
    Taught(Case("TP2·DP2", "accumulate 2, recompute", TP2_DP2, micro_batch=2, recomputes=True)),
    Taught(Case("TP2·DP2", "257 rows", TP2_DP2, model="llama-uneven"), temperature=1.0),
    Taught(Case("TP2·DP2", "whole", TP2_REPLICATE2, tensor_parallel="auto", replicas="whole"), weight=1.0),
    Taught(Case("TP2·DP2", "adapters", TP2_DP2, micro_batch=2, adapter=QV), packing="none"),
    Taught(Case("DP2", "4 chunks", {"dp_shard": 2}, settings=("train.loss_chunks=4",)), packing="none"),
    Taught(Case("TP2", "4 chunks", {"tp": 2}, settings=("train.loss_chunks=4",), model="llama-uneven")),
    Taught(Case("CP2·DP2", "ring headtail", CP2_DP2, micro_batch=2)),
    Taught(Case("CP2", "all-gather, recompute", {"cp": 2}, rotate="allgather", recomputes=True)),
    Taught(Case("DP2·CP2·TP2", "ulysses", ALL_8, rotate="ulysses", balance="none", micro_batch=2)),
    Taught(Case("PP2·DP2", "", PP2_DP2, micro_batch=2), packing="none"),
    Taught(Case("PP2·TP2", "zero bubble", {"pp": 2, "tp": 2}, micro_batch=2, schedule="zero_bubble")),
)


@dataclass(frozen=True)
class Piece:
    """Tokens that see each other, which of them are labels, and the place of the first in its sequence."""

    tokens: list[int]
    is_label: list[bool]
    start: int = 0


def sequences(packing: str, folder: Path) -> list[list[Piece]]:
    """Each sequence's pieces, from the rows of a file."""
    if packing == "none":
        every: list[list[Piece]] = []
        for row in _rows(folder / ANSWERS):
            prompt, answer = [*row["prompt"].encode()], [*row["completion"].encode(), END]
            is_answer = [False] * len(prompt) + [True] * len(answer)
            every.append([Piece(prompt + answer, is_answer[1:])])
        return every
    stream = [token for row in _rows(folder / TEXTS) for token in (*row["text"].encode(), END)]
    windows = [stream[at : at + LENGTH + 1] for at in range(0, len(stream) - LENGTH, LENGTH)]
    if packing == "attend":
        return [[Piece(window, [True] * LENGTH)] for window in windows]
    every = []
    for window in windows:
        ends = [at + 1 for at, token in enumerate(window) if token == END]
        bounds = sorted({0, *ends, len(window)})
        # The last of a document's tokens predicts nothing of its own, so a piece of one token has no label.
        parts = [(a, window[a:b]) for a, b in pairwise(bounds) if b - a > 1]
        every.append([Piece(part, [True] * (len(part) - 1), at) for at, part in parts])
    return every


def _rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("distillation") / "workspace", tuple(TEACHERS))
    for model, teacher in TEACHERS.items():
        (folder / teacher).mkdir()
        config = {**_TEACHER, "vocab_size": cases.MODELS[model]["vocab_size"]}
        (folder / teacher / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_inventory(folder / teacher)
        write_weights(folder / teacher)
    texts = [{"text": f"item {n * n} holds " + "ranks, " * (n % 7)} for n in range(40)]
    answers = [
        {"prompt": f"question {n * 37}? ", "completion": "because " * (n % 4 + 1) + str(n)} for n in range(21)
    ]
    for name, rows in ((TEXTS, texts), (ANSWERS, answers)):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return folder


Likeliest = tuple[Tensor, Tensor]


@cache
def stored(model: str, packing: str, workspace: Path) -> Likeliest:
    """Ids and log-probabilities [sequences, length, k] by transformers, stored as a run reads them.

    What no label reads is made up.
    """
    teacher = AutoModelForCausalLM.from_pretrained(workspace / TEACHERS[model], dtype=torch.float64).eval()
    every = sequences(packing, workspace)
    ids = torch.zeros((len(every), LENGTH, TOP_K), dtype=torch.int32)
    values = torch.full(ids.shape, _MADE_UP)
    with torch.no_grad():
        for number, pieces in enumerate(every):
            for piece in pieces:
                logits = teacher(input_ids=torch.tensor([piece.tokens[:-1]]), use_cache=False).logits[0]
                best = logits.log_softmax(-1).sort(descending=True)
                place = slice(piece.start, piece.start + len(logits))
                ids[number, place] = best.indices[:, :TOP_K].int()
                values[number, place] = best.values[:, :TOP_K].float()
    taught = Taught(Case("1", model=model), packing)
    data = training_data(compile_case(taught.settled, workspace=workspace))
    opened = open_data(data_spec(data, training=data), base=workspace, model_vocab_size=260)
    origin = {"teacher": TEACHERS[model], "top_k": str(TOP_K), "data": opened.fingerprint}
    folder = workspace / f"stored-{model}-{packing}"
    folder.mkdir()
    sums = [
        zlib.crc32(b.numpy().tobytes(), zlib.crc32(a.numpy().tobytes()))
        for a, b in zip(ids, values, strict=True)
    ]
    tensors = {"teacher_ids": ids, "teacher_log_probabilities": values, "crc32": torch.tensor(sums)}
    save_file(tensors, folder / "part-00000.safetensors", metadata={"teacher": json.dumps(origin)})
    return ids, values


@dataclass
class ByHand:
    """The training of one process."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    final: dict[str, Tensor] = field(default_factory=dict)


def losses_of(logits: Tensor, labels: Tensor, likeliest: Likeliest, taught: Taught) -> Tensor:
    """The loss of each token, of logits [n, vocabulary]."""
    ids, values = likeliest
    teacher = (values.double() / taught.temperature).softmax(-1)
    student = (logits / taught.temperature).log_softmax(-1).gather(-1, ids.long())
    divergence = (teacher * (teacher.log() - student)).sum(-1)
    entropy = -logits.log_softmax(-1)[torch.arange(len(labels)), labels]
    return taught.weight * taught.temperature**2 * divergence + (1 - taught.weight) * entropy


def by_hand(taught: Taught, workspace: Path) -> ByHand:
    case = taught.case
    write_weights(workspace / case.model)
    model = AutoModelForCausalLM.from_pretrained(workspace / case.model, dtype=torch.float64)
    if case.adapter:
        layers = [f"model.layers.{n}.self_attn.{one}_proj" for n in (0, 1) for one in "qv"]
        WithLora(tuple(layers), 4, SCALES[case.adapter])(model)
        model.double()
    likeliest = stored(case.model, taught.packing, workspace)
    modeling_llama.torch = _Wide()
    try:
        return _trained(model.train(), taught, likeliest, sequences(taught.packing, workspace))
    finally:
        modeling_llama.torch = torch


def _trained(model: nn.Module, taught: Taught, likeliest: Likeliest, every: list[list[Piece]]) -> ByHand:
    trained, order = ByHand(), _order(len(every))
    optimizer = torch.optim.AdamW(_groups(model), lr=cases.LEARNING_RATE, betas=cases.BETAS, eps=1e-8)
    for step in range(1, cases.NUM_STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = cases.LEARNING_RATE * _factor(step)
        total, count = torch.zeros((), dtype=torch.float64), 0
        for number in [next(order) for _ in range(cases.GLOBAL_BATCH)]:
            for piece in every[number]:
                logits = model(input_ids=torch.tensor([piece.tokens[:-1]]), use_cache=False).logits[0]
                place = slice(piece.start, piece.start + len(logits))
                own = likeliest[0][number, place], likeliest[1][number, place]
                values = losses_of(logits, torch.tensor(piece.tokens[1:]), own, taught)
                total = total + (values * torch.tensor(piece.is_label)).sum()
                count += sum(piece.is_label)
        loss = total / count
        loss.backward()  # type: ignore[no-untyped-call]
        trained.gradients = trained.gradients or gradients_of(model)
        trained.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), cases.MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        trained.losses.append(loss.item())
    trained.final = {name: one.detach().clone() for name, one in model.named_parameters()}
    return trained


def assert_trains_as_one_process(taught: Taught, workspace: Path) -> None:
    expected = by_hand(taught, workspace)
    graph = compile_case(taught.settled, workspace=workspace)
    with TemporaryDirectory(prefix="planc-distillation-") as folder:
        task = Task(graph, workspace, Path(folder), widen)
        records: list[Record] = run_ranks(wide_rank, taught.case.world_size, task, init=False)
    first, metrics = records[0], records[0].metrics
    assert disagreements(records) == ()
    assert worst_relative([one.loss for one in metrics], expected.losses) < TOLERANCE
    assert worst_relative([one.grad_norm for one in metrics], expected.norms) < TOLERANCE
    worst, error = worst_gradient(first.gradients, expected.gradients)
    assert error < TOLERANCE, f"gradient of {worst}"
    worst, error = worst_gradient(first.final, expected.final)
    assert error < 100 * TOLERANCE, f"final {worst}"


@pytest.mark.parametrize("taught", QUICK, ids=lambda taught: taught.name)
def test_a_student_is_trained_as_in_one_process(taught: Taught, workspace: Path) -> None:
    assert_trains_as_one_process(taught, workspace)


@pytest.mark.slow
@pytest.mark.parametrize("taught", CASES, ids=lambda taught: taught.name)
def test_every_mesh_trains_a_student_as_one_process(taught: Taught, workspace: Path) -> None:
    assert_trains_as_one_process(taught, workspace)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_command_stores_what_transformers_computes(num_ranks: int, workspace: Path) -> None:
    taught = Taught(Case("1", micro_batch=2), packing="isolate")
    ids, values = stored("llama", "isolate", workspace)
    kept = workspace / "stored-llama-isolate" / "part-00000.safetensors"
    own = loss_setting("llama", "isolate", 2.0, 0.7).replace("stored-llama", f"on-{num_ranks}")
    others = [text for text in taught.settled.settings if not text.startswith("train.loss")]
    settings = [f"--set={text}" for text in (*others, own)]
    (workspace / "student.plan").write_text(cases.plan_text(taught.case), encoding="utf-8")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks), "-m", "planc", "teacher"]
    for _ in range(2):
        subprocess.run([sys.executable, *command, "student.plan", *settings], cwd=workspace, check=True)
    tensors = load_file(workspace / f"on-{num_ranks}-isolate" / kept.name)
    rows = sum(tensors[name].nbytes for name in ("teacher_ids", "teacher_log_probabilities"))
    assert rows == len(ids) * stored_sequence_bytes(compile_case(taught.settled, workspace=workspace))
    is_read = values != _MADE_UP
    assert torch.equal(tensors["teacher_ids"][is_read], ids[is_read])
    torch.testing.assert_close(tensors["teacher_log_probabilities"][is_read], values[is_read])
