"""Preference training on meshes against one process in plain torch, in float64: loss, gradients, weights.

Rows, order, labels and the loss are written a second time here. Adapters begin with none of them zero.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from planc.graph.op import Op
from planc.graph.ops import Forward, MaterialiseWeights, NextBatch
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.verify.compare import disagreements, worst_gradient, worst_relative
from planc.verify.pool import RankError
from tests.dist.pool import run_ranks
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
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import _factor, _groups, _order, write_weights
from tests.parity.test_adapter_parity import QV, SCALES, WithLora, fill_adapters

TOLERANCE = 1e-10
BETA, SMOOTHING = 0.3, 0.1
CHUNKS = ("train.loss_chunks=4",)
"""Parts of a sequence in small micro-batches, and several sequences in others."""
FILE, HELD_OUT, END = "pairs.jsonl", "held_out.jsonl", 256
EVALUATION = f'    source = pairs("{HELD_OUT}", template = none)\n    every = 3 steps\n'
SETTINGS = (
    f'data.source=pairs("{FILE}", template = none)',
    f"train.loss=dpo(beta = {BETA}, label_smoothing = {SMOOTHING})",
    "model.dtype=float64",
)
CASES = (
    Case("1", "accumulate 4", micro_batch=2),
    Case("DP2", "accumulate 2", {"dp_shard": 2}, micro_batch=2),
    Case("DP4", "HSDP 2x2", {"dp_replicate": 2, "dp_shard": 2}),
    Case("TP2·DP2", "accumulate 2, recompute", TP2_DP2, micro_batch=2, recomputes=True),
    Case("TP2·DP2", "257 rows", TP2_DP2, model="llama-uneven"),
    Case("TP2·DP2", "auto, no SP, whole replicas", TP2_REPLICATE2, tensor_parallel="auto", replicas="whole"),
    Case("TP2·DP2", "adapters", TP2_DP2, micro_batch=2, adapter=QV),
    Case("DP2", "adapters", {"dp_shard": 2}, adapter=QV),
    Case("CP2·DP2", "ring headtail", CP2_DP2, micro_batch=2),
    Case("CP2", "all-gather, recompute", {"cp": 2}, rotate="allgather", recomputes=True),
    Case("DP2·CP2·TP2", "ulysses", ALL_8, rotate="ulysses", balance="none", micro_batch=2),
    Case("PP2·DP2", "", PP2_DP2, micro_batch=2),
    Case("PP2·TP2", "zero bubble", {"pp": 2, "tp": 2}, micro_batch=2, schedule="zero_bubble"),
    Case("PP2·CP2", "adapters", {"pp": 2, "cp": 2}, micro_batch=4, adapter=QV),
    Case("1", "accumulate 4, chunks", micro_batch=2, settings=CHUNKS),
    Case("TP2·DP2", "257 rows, chunks", TP2_DP2, model="llama-uneven", settings=CHUNKS),
    Case("TP2·DP2", "adapters, chunks", TP2_DP2, micro_batch=2, adapter=QV, settings=CHUNKS),
    Case("DP2", "recompute, chunks", {"dp_shard": 2}, recomputes=True, settings=CHUNKS),
    Case("DP2", "whole replicas, chunks", {"dp_replicate": 2}, replicas="whole", settings=CHUNKS),
    Case("CP2", "tied, chunks", {"cp": 2}, model="llama-tied", settings=CHUNKS),
    Case("PP2", "zero bubble, chunks", {"pp": 2}, micro_batch=2, schedule="zero_bubble", settings=CHUNKS),
    Case("PP2·CP2", "adapters, chunks", {"pp": 2, "cp": 2}, micro_batch=4, adapter=QV, settings=CHUNKS),
)


def held_out_rows() -> Iterator[dict[str, str]]:
    """Three pairs, so ranks of dp have no equal number of them."""
    for index in range(3):
        yield {"prompt": f"and {index}? ", "chosen": "since " * (index + 1), "rejected": "?" * (7 - index)}


def rows() -> Iterator[dict[str, str]]:
    """Prompts with two answers; one row is too long, and one has the same answer twice."""
    for index in range(11):
        answer = "because " * (index % 4 + 1)
        other = "no idea" if index != 5 else answer
        yield {"prompt": f"question {index * 37}? ", "chosen": answer, "rejected": other + "!" * (index % 3)}
    yield {"prompt": "too long? ", "chosen": "x" * 80, "rejected": "short"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(
        tmp_path_factory.mktemp("preferences") / "workspace", ("llama", "llama-uneven", "llama-tied")
    )
    for file, of in ((FILE, rows()), (HELD_OUT, held_out_rows())):
        (folder / file).write_text("".join(f"{json.dumps(row)}\n" for row in of), encoding="utf-8")
    return folder


class _Wide:
    """The name `torch` of a model's code, whose norms compute in float64."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def widen(state: State, op: Op, position: Position) -> None:
    """Not before a model is built: its rotary frequencies are float32."""
    fill_adapters(state, op, position)
    if isinstance(op, MaterialiseWeights):
        modeling_llama.torch = _Wide()


def wide_rank(rank: int, world_size: int, task: Task) -> Record:
    try:
        return train_rank(rank, world_size, task)
    finally:
        modeling_llama.torch = torch


@dataclass
class ByHand:
    """The training of one process."""

    losses: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evaluations: list[tuple[float, float, float]] = field(default_factory=list)
    """The means of loss, margin and accuracy over the held-out pairs, every third step."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    final: dict[str, Tensor] = field(default_factory=dict)


Sequences = list[tuple[list[int], list[int]]]


def sequences(of: Iterable[dict[str, str]]) -> Sequences:
    """The tokens of each answer after its prompt, and whether each is the answer's; pairs that fit alone."""
    pairs = []
    for row in of:
        both = []
        for name in ("chosen", "rejected"):
            prompt, answer = [*row["prompt"].encode()], [*row[name].encode(), END]
            both.append((prompt + answer, [0] * len(prompt) + [1] * len(answer)))
        if all(len(tokens) <= cases.SEQUENCE_LENGTH + 1 for tokens, _ in both):
            pairs += both
    return pairs


def log_probabilities(model: nn.Module, some: Sequences) -> Tensor:
    """The sum over each answer, one sequence at a time and without padding."""
    sums = []
    for tokens, is_answer in some:
        logits = model(input_ids=torch.tensor([tokens[:-1]]), use_cache=False).logits[0]
        of_labels = logits.log_softmax(-1)[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
        sums.append((of_labels * torch.tensor(is_answer[1:])).sum())
    return torch.stack(sums)


@cache
def by_hand(name: str, adapter: str, workspace: Path, other: str = "") -> ByHand:
    """`other` is the folder of the reference's weights."""
    write_weights(workspace / name)
    model, reference = (
        AutoModelForCausalLM.from_pretrained(workspace / (one or name), dtype=torch.float64)
        for one in ("", other)
    )
    if adapter:
        layers = [f"model.layers.{n}.self_attn.{one}_proj" for n in (0, 1) for one in "qv"]
        WithLora(tuple(layers), 4, SCALES[adapter])(model)
        model.double()
    modeling_llama.torch = _Wide()
    try:
        return _trained(model.train(), reference if other else model)
    finally:
        modeling_llama.torch = torch


def losses_of(gains: Tensor) -> tuple[Tensor, Tensor]:
    """The losses and the margins of pairs."""
    margins = BETA * (gains[::2] - gains[1::2])
    right = torch.sigmoid(margins)
    return -((1 - SMOOTHING) * right.log() + SMOOTHING * (1 - right).log()), margins


def _trained(model: nn.Module, of_reference: nn.Module) -> ByHand:
    every, held_out = sequences(rows()), sequences(held_out_rows())
    trained, num_pairs = ByHand(), len(every) // 2
    with torch.no_grad():
        reference, of_held_out = (log_probabilities(of_reference, some) for some in (every, held_out))
    optimizer = torch.optim.AdamW(_groups(model), lr=cases.LEARNING_RATE, betas=cases.BETAS, eps=1e-8)
    order = _order(num_pairs)
    for step in range(1, cases.NUM_STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = cases.LEARNING_RATE * _factor(step)
        pairs = [next(order) for _ in range(cases.GLOBAL_BATCH // 2)]
        ids = [one for pair in pairs for one in (2 * pair, 2 * pair + 1)]
        losses, margins = losses_of(log_probabilities(model, [every[one] for one in ids]) - reference[ids])
        loss = losses.mean()
        loss.backward()  # type: ignore[no-untyped-call]
        trained.gradients = trained.gradients or gradients_of(model)
        trained.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), cases.MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        trained.losses.append(loss.item())
        trained.margins.append(margins.mean().item())
        trained.accuracies.append((margins > 0).double().mean().item())
        if step % 3 == 0:
            with torch.no_grad():
                losses, margins = losses_of(log_probabilities(model, held_out) - of_held_out)
            means = losses.mean(), margins.mean(), (margins > 0).double().mean()
            trained.evaluations.append((means[0].item(), means[1].item(), means[2].item()))
    trained.final = {name: one.detach().clone() for name, one in model.named_parameters()}
    return trained


def assert_trains_as_one_process(case: Case, *, workspace: Path, other: str = "") -> None:
    expected = by_hand(case.model, case.adapter, workspace, other)
    case = replace(case, weights="pretrained", settings=(*SETTINGS, *case.settings), evaluation=EVALUATION)
    graph = compile_case(case, workspace=workspace)
    with TemporaryDirectory(prefix="planc-preferences-") as folder:
        task = Task(graph, workspace, Path(folder), widen, compares_collectives=True)
        records: list[Record] = run_ranks(wide_rank, case.world_size, task, init=False)
    first, metrics = records[0], records[0].metrics
    assert disagreements(records) == ()
    assert (expected.losses[0] == pytest.approx(log(2), abs=1e-14)) is (not other)
    assert worst_relative([one.loss for one in metrics], expected.losses) < TOLERANCE
    assert worst_relative([one.grad_norm for one in metrics], expected.norms) < TOLERANCE
    worst, error = worst_gradient(first.gradients, expected.gradients)
    assert error < TOLERANCE, f"gradient of {worst}"
    worst, error = worst_gradient(first.final, expected.final)
    assert error < 100 * TOLERANCE, f"final {worst}"
    begin = 0 if other else 1
    margins = [one.custom["reward_margin"] for one in metrics[begin:]]
    assert worst_relative(margins, expected.margins[begin:]) < 100 * TOLERANCE
    accuracies = [one.custom["reward_accuracy"] for one in metrics[begin:]]
    assert accuracies == expected.accuracies[begin:]
    evaluations = [one for step in metrics for one in step.evaluations]
    found = [(one.loss, one.reward_margin, one.reward_accuracy) for one in evaluations]
    assert [one for *_, one in found] == [one for *_, one in expected.evaluations]
    for mean in (0, 1):
        values, wanted = ([one[mean] for one in each] for each in (found, expected.evaluations))
        assert worst_relative(values, wanted) < 100 * TOLERANCE


def test_a_sharded_vocabulary_trains_on_pairs_as_one_process(workspace: Path) -> None:
    case = Case("TP2", "257 rows", {"tp": 2}, model="llama-uneven", micro_batch=4)
    assert_trains_as_one_process(case, workspace=workspace)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mesh_trains_on_pairs_as_one_process(case: Case, workspace: Path) -> None:
    assert_trains_as_one_process(case, workspace=workspace)


def write_other(workspace: Path, **changes: object) -> str:
    """The folder of a model with other weights, and perhaps with another config."""
    write_weights(workspace / "llama")
    shutil.copytree(workspace / "llama", workspace / "other", dirs_exist_ok=True)
    weights, generator = (
        load_file(workspace / "llama" / "model.safetensors"),
        torch.Generator().manual_seed(3),
    )
    noisy = {name: one + 0.05 * torch.randn(one.shape, generator=generator) for name, one in weights.items()}
    save_file(noisy, workspace / "other" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((workspace / "llama" / "config.json").read_text(encoding="utf-8"))
    (workspace / "other" / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return "other"


WITH_OTHER = (
    f'train.loss=dpo(beta = {BETA}, label_smoothing = {SMOOTHING}, reference = "other")',
    "model.dtype=float64",
)


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[3], CASES[11]], ids=lambda case: case.name)
def test_a_reference_of_another_model_is_that_of_plain_torch(case: Case, workspace: Path) -> None:
    """Training starts from weights of its own, and no loss begins at log 2."""
    case = replace(case, settings=WITH_OTHER)
    assert_trains_as_one_process(case, workspace=workspace, other=write_other(workspace))


@pytest.mark.slow
def test_a_reference_of_another_kind_is_refused(workspace: Path, tmp_path: Path) -> None:
    """Its weights fit, and the default of a setting that its config leaves out is another."""
    case = Case("DP2", mesh={"dp_shard": 2}, weights="pretrained", settings=(*SETTINGS[:1], *WITH_OTHER))
    graph = compile_case(case, workspace=workspace)
    write_other(workspace, rope_theta=5000.0)
    with pytest.raises(RankError, match="the reference in other is not a model of this plan: its rope_"):
        run_ranks(train_rank, 2, Task(graph, workspace, tmp_path), init=False)


def reads_the_reference(state: State, op: Op, position: Position) -> None:
    """An error if a forward comes before step 1."""
    widen(state, op, position)
    assert not (isinstance(op, Forward) and position.step == 0), "the reference is computed"


def _flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.slow
def test_a_stored_reference_is_of_its_weights_and_whole(workspace: Path, tmp_path: Path) -> None:
    """A damaged file is written again, and so is one of other weights or pairs."""
    case = Case("1", micro_batch=8, weights="pretrained", settings=SETTINGS[:2], evaluation=EVALUATION)
    other = (f'train.loss=dpo(beta = {BETA}, reference = "{write_other(workspace)}")',)

    def start(settings: tuple[str, ...] = ()) -> dict[str, str]:
        graph = compile_case(replace(case, settings=(*case.settings, *settings)), workspace=workspace)
        task = Task(graph, workspace, tmp_path, stop_after=1)
        run_ranks(train_rank, 1, task, init=False)
        files = sorted((tmp_path / "references").iterdir())
        assert [file.name for file in files] == ["eval.held_out.safetensors", "training.safetensors"]
        return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}

    first = start()
    assert start() == first
    _flip_a_bit(tmp_path / "references" / "training.safetensors")
    assert start() == first
    for settings in (
        ("model.dtype=bfloat16",),
        ("data.sequence_length=32", "train.tokens_per_step=256"),
        other,
    ):
        changed = start(settings)
        assert changed.keys() == first.keys() and not {*changed.values()} & {*first.values()}
    file = workspace / case.model / "model.safetensors"
    original, weights = file.read_bytes(), load_file(file)
    save_file(weights | {"model.norm.weight": weights["model.norm.weight"] * 2}, file)
    assert not {*start().values()} & {*first.values()}
    file.write_bytes(original)
    assert start() == first


@pytest.mark.slow
def test_a_resumed_run_has_the_reference_of_its_first_step(workspace: Path) -> None:
    case = Case("DP2", mesh={"dp_shard": 2}, weights="pretrained", settings=SETTINGS)
    other = replace(case, mesh={"tp": 2})
    expected = by_hand(case.model, "", workspace)
    starts = ((case, cases.SAVE_STEP, widen), (other, None, reads_the_reference))
    with TemporaryDirectory(prefix="planc-preferences-") as folder:
        losses = []
        for one, stop_after, before_op in starts:
            graph = compile_case(one, workspace=workspace, saves=True)
            task = Task(graph, workspace, Path(folder), before_op, stop_after=stop_after)
            records: list[Record] = run_ranks(wide_rank, 2, task, init=False)
            losses += [step.loss for step in records[0].metrics]
    assert worst_relative(losses, expected.losses) < TOLERANCE


def _trains_before(state: State, op: Op, position: Position) -> None:
    """Change the weights after the reference is computed."""
    if isinstance(op, NextBatch) and position.step == 1:
        with torch.no_grad():
            for parameter in state[nn.Module].parameters():
                parameter.sub_(1e-3 * torch.randn_like(parameter).sign())


def test_step_1_has_the_weights_of_the_reference(workspace: Path) -> None:
    case = Case("1", micro_batch=8, weights="pretrained", settings=SETTINGS[:2])
    write_weights(workspace / case.model)
    graph = compile_case(case, workspace=workspace)
    with TemporaryDirectory(prefix="planc-preferences-") as folder:
        task = Task(graph, workspace, Path(folder), _trains_before)
        with pytest.raises(
            RankError, match="log-probabilities in step 1 differ from the reference's"
        ) as found:
            run_ranks(train_rank, 1, task, init=False)
        assert "on rank 0 (" in str(found.value) and " answer of pair " in str(found.value)
