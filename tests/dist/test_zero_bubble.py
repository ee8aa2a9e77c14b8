"""Every gradient of three steps by `zero_bubble`, against a loop of torch and transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from planc.api import check_source
from planc.graph.op import Op
from planc.graph.ops import ClipGradients, ComputeWeightGradients
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.source import SourceFile
from planc.verify.ranks import BeforeOp, packings_of, tensors_of_all_stages, whole_tensors
from tests.dist.pool import run_ranks
from tests.models.independent import gradients_of, loaded, snapshot, tokens_of, write_weights
from tests.parity.ranks import Record, Task, train_rank

NUM_SEQUENCES, LENGTH, NUM_STEPS = 6, 16, 3
LEARNING_RATE, EPS, MAX_NORM = 1e-2, 1e-3, 0.5
LIMIT = 1e-12
SMALL = 1e-3
"""Share of the whole norm that a gradient is measured against at least: biases of keys have none."""
CONFIG = {
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 260,
    "sliding_window": None,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
"""In float64 nothing of it is computed in less, but rotary tables. Its linear layers have biases."""
PLAN = """\
model {{
  hf = "{model}"
  dtype = {dtype}
  weights = pretrained
}}
mesh {{
{mesh}
}}
pipeline on pp {{
  schedule = {schedule}
}}
data {{
  source = text("corpus.txt")
  sequence_length = {length}
  micro_batch = {micro_batch}
}}
optimizer {{
  kind = adamw(lr = {lr}, betas = [0.9, 0.95], eps = {eps}, weight_decay = 0.0)
  clip_grad_norm = {max_norm}
}}
train {{
  steps = {steps}
  tokens_per_step = {tokens}
}}
"""
FSDP = 'fsdp on dp_shard {\n  "model.layers.*" -> unit\n}\n'
GATHERED = FSDP.replace("unit", "unit(reshard_after_forward = false)")
SEQUENCE = "tensor_parallel on tp {\n  auto(sequence_parallel = true)\n}\n"
RECOMPUTED = 'activation_checkpoint {\n  "model.layers.*" -> full\n}\n'


@dataclass(frozen=True, slots=True)
class Case:
    """A plan. Six sequences make a step, so a micro-batch of two makes three of two ranks."""

    mesh: Mapping[str, int]
    blocks: str = ""
    micro_batch: int = 1
    model: str = "untied"
    schedule: str = "zero_bubble"
    dtype: str = "float64"

    @property
    def world_size(self) -> int:
        size = 1
        for one in self.mesh.values():
            size *= one
        return size


CASES = {
    "pp 2, 6 micro-batches": Case({"pp": 2}),
    "pp 2, 3 micro-batches": Case({"pp": 2}, micro_batch=2),
    "pp 4, 6 micro-batches": Case({"pp": 4}),
    "fsdp, 3 micro-batches": Case({"pp": 2, "dp_shard": 2}, FSDP),
    "fsdp, units that stay gathered": Case({"pp": 2, "dp_shard": 2}, GATHERED),
    "tp with sequence parallelism, 6 micro-batches": Case({"pp": 2, "tp": 2}, SEQUENCE),
    "tp with sequence parallelism, recomputed": Case({"pp": 2, "tp": 2}, SEQUENCE + RECOMPUTED, 2),
    "whole replicas": Case({"pp": 2, "dp_replicate": 2}),
    "tied weights": Case({"pp": 2}, model="tied"),
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zero-bubble")
    # As many bytes as the sequences of a step: the token after the last is the end of the document.
    text = "".join(chr(97 + (i * i + 3 * i) % 23) for i in range(NUM_SEQUENCES * LENGTH))
    (folder / "corpus.txt").write_text(text, encoding="ascii")
    for name in ("untied", "tied"):
        (folder / name).mkdir()
        config = json.dumps({**CONFIG, "tie_word_embeddings": name == "tied"})
        (folder / name / "config.json").write_text(config, encoding="utf-8")
        write_weights(folder / name)
    return folder


@dataclass(frozen=True, slots=True)
class Step:
    loss: float
    grad_norm: float
    gradients: dict[str, Tensor]


def trained_alone(folder: Path, corpus: Path) -> tuple[list[Step], dict[str, Tensor]]:
    """Every step, and the weights after the last."""
    model = loaded(folder, dtype="float64")
    tokens = tokens_of(corpus, sequence_length=LENGTH)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0
    )
    steps = []
    for _ in range(NUM_STEPS):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = gradients_of(model)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
        optimizer.step()
        optimizer.zero_grad()
        steps.append(Step(loss.item(), norm, gradients))
    return steps, snapshot(model)


def keeps_gradients(state: State, op: Op, position: Position) -> None:
    """Writes the gradients of every step as they are before clipping."""
    if not isinstance(op, ClipGradients):
        return
    found = {name: p.grad for name, p in state[nn.Module].named_parameters() if p.grad is not None}
    whole = tensors_of_all_stages(state, whole_tensors(found, packings_of(state[nn.Module])))
    if state[Run].launch.rank == 0:
        torch.save(whole, state[Run].paths.run / f"gradients-{position.step}.pt")


def forgets_a_product(state: State, op: Op, position: Position) -> None:
    """Loses the last layer's weight gradient of one micro-batch in the second step."""
    keeps_gradients(state, op, position)
    if isinstance(op, ComputeWeightGradients) and (position.step, position.micro_step) == (2, 1):
        assert state.get(Pipeline) is not None
        state.get(Pipeline).deferred[position.stage, position.micro_step].pop()


def run_case(case: Case, *, workspace: Path, folder: Path, before_op: BeforeOp) -> list[Record]:
    sizes = "\n".join(f"  {name} = {size}" for name, size in case.mesh.items())
    text = PLAN.format(
        model=case.model,
        dtype=case.dtype,
        schedule=case.schedule,
        mesh=sizes,
        length=LENGTH,
        micro_batch=case.micro_batch,
        lr=LEARNING_RATE,
        eps=EPS,
        max_norm=MAX_NORM,
        steps=NUM_STEPS,
        tokens=NUM_SEQUENCES * LENGTH,
    )
    checked = check_source(SourceFile("x.plan", text + case.blocks), base=workspace)
    assert checked.graph is not None, checked.diagnostics
    return run_ranks(
        train_rank, case.world_size, Task(checked.graph, workspace, folder, before_op), init=False
    )


def differences(
    records: list[Record], folder: Path, steps: list[Step], final: dict[str, Tensor]
) -> Iterator[str]:
    """What is not as in one process."""
    for number, (metrics, step) in enumerate(zip(records[0].metrics, steps, strict=True), start=1):
        found = torch.load(folder / f"gradients-{number}.pt")
        if found.keys() != step.gradients.keys():
            yield f"step {number} has other gradients"
        for name, expected in step.gradients.items():
            size = max(expected.norm().item(), SMALL * step.grad_norm)
            if not (found[name] - expected).norm().item() <= LIMIT * size:
                yield f"step {number}: {name}"
        for what, actual, wanted in (
            ("loss", metrics.loss, step.loss),
            ("norm", metrics.grad_norm, step.grad_norm),
        ):
            if actual is None or not abs(actual - wanted) <= LIMIT * wanted:
                yield f"step {number}: {what}"
    for name, expected in final.items():
        if not torch.allclose(records[0].final[name], expected, rtol=1e-9, atol=1e-11):
            yield f"the last {name}"


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("name", CASES)
def test_every_gradient_of_three_steps_is_that_of_one_process(
    name: str, workspace: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    records = run_case(case, workspace=workspace, folder=tmp_path, before_op=keeps_gradients)
    steps, final = trained_alone(workspace / case.model, workspace / "corpus.txt")
    assert [*differences(records, tmp_path, steps, final)] == []


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("unit", ["unit", "unit(reshard_after_forward = false)"])
def test_gradients_are_summed_in_the_reduce_dtype_as_those_of_1f1b(
    unit: str, workspace: Path, tmp_path: Path
) -> None:
    """Bit for bit: each micro-batch's are of bfloat16, and their sum is of float32."""
    dtypes = "  param_dtype = bfloat16\n  reduce_dtype = float32\n"
    blocks = f'fsdp on dp_shard {{\n{dtypes}  "model.layers.*" -> {unit}\n}}\n'
    found = []
    for schedule in ("zero_bubble", "one_f_one_b"):
        folder = tmp_path / schedule
        folder.mkdir()
        case = Case({"pp": 2, "dp_shard": 2}, blocks, schedule=schedule, dtype="float32")
        run_case(case, workspace=workspace, folder=folder, before_op=keeps_gradients)
        found.append([torch.load(folder / f"gradients-{step}.pt") for step in range(1, NUM_STEPS + 1)])
    for ours, theirs in zip(*found, strict=True):
        assert ours.keys() == theirs.keys()
        assert [name for name, one in ours.items() if not torch.equal(one, theirs[name])] == []


def test_a_product_that_is_forgotten_is_found(workspace: Path, tmp_path: Path) -> None:
    case = CASES["pp 2, 3 micro-batches"]
    records = run_case(case, workspace=workspace, folder=tmp_path, before_op=forgets_a_product)
    steps, final = trained_alone(workspace / case.model, workspace / "corpus.txt")
    found = [*differences(records, tmp_path, steps, final)]
    assert found[0].startswith("step 2: ")
    assert "step 2: lm_head.weight" in found
