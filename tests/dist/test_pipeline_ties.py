"""Weights that the first and the last stage of a pipeline share: two copies that train as one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM

from planc.api import check_source
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import CompareReplicas
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.run import Run
from planc.source import SourceFile
from planc.verify.compare import disagreements, worst_gradient, worst_relative
from planc.vocab import MeshDim
from tests.dist.first_steps import run_compared
from tests.dist.pool import RankError, run_ranks
from tests.inventories import save_inventory
from tests.parity import cases
from tests.parity.cases import NUM_STEPS, SAVE_STEP, Case, plan_text
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import Training, train_reference, write_weights

MODEL = "starcoder-tied"
_CONFIG: Mapping[str, Any] = {
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 260,
    "tie_word_embeddings": True,
    "sliding_window": None,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
"""Nothing of it but rotary tables is computed in less than float64."""
EMBEDDING = "model.embed_tokens.weight"
INTERLEAVED = "interleaved(stages_per_rank = 2)"
SCHEDULES = ("gpipe", "one_f_one_b", INTERLEAVED)
_VOCABULARY_PARALLEL = """  "model.embed_tokens" -> embedding_rowwise
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.mlp.c_fc" -> colwise
  ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.c_proj"] -> rowwise
  "lm_head" -> colwise(output = Shard(-1))
"""
_TIED = Case("", model=MODEL, micro_batch=1, tensor_parallel="auto", weights="pretrained")
PIPELINED = tuple(replace(_TIED, variant=f"pp 2 {one}", mesh={"pp": 2}, schedule=one) for one in SCHEDULES)
SHARDED = tuple(
    replace(_TIED, variant=f"fsdp {one}", mesh={"pp": 2, "dp_shard": 2}, schedule=one) for one in SCHEDULES
)
FSDP = SHARDED[1]
PP4 = replace(_TIED, variant="pp 4", mesh={"pp": 4})
REPLICAS = replace(_TIED, variant="whole replicas", mesh={"pp": 2, "dp_replicate": 2}, replicas="whole")
TP = replace(_TIED, variant="tp", mesh={"pp": 2, "tp": 2})
CASES = (
    *PIPELINED,
    *SHARDED,
    PP4,
    replace(PP4, variant="pp 4 gpipe", schedule="gpipe"),
    REPLICAS,
    TP,
    replace(TP, variant="tp interleaved", schedule=INTERLEAVED),
)
COUNTED = (FSDP, SHARDED[2], PP4, REPLICAS, TP)
COMPARED = "guard {\n  replicas_every = 1 step\n}\n"
SAVED = f"checkpoint {{\n  save_every = {SAVE_STEP} steps\n  keep_last = 9\n  resume = latest\n}}\n"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ties")
    (folder / MODEL).mkdir()
    (folder / MODEL / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
    save_inventory(folder / MODEL)
    text = " ".join(f"{number * number % 97} ranks hold the ends of {number}" for number in range(400))
    (folder / cases.CORPUS).write_text(text, encoding="utf-8")
    write_weights(folder / MODEL)
    with safe_open(folder / MODEL / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118  # it is not a mapping
    return folder


@pytest.fixture(scope="module")
def alone(workspace: Path) -> Training:
    return train_reference(MODEL, workspace=workspace, dtype=torch.float64)


def compiled(case: Case, *, workspace: Path, more: str = "") -> Graph:
    text = plan_text(case).replace("  seed =", "  dtype = float64\n  seed =", 1)
    checked = check_source(
        SourceFile("x.plan", text.replace("  auto\n", _VOCABULARY_PARALLEL) + more), base=workspace
    )
    assert checked.graph is not None, checked.diagnostics
    return checked.graph


def train(case: Case, *, workspace: Path, run_folder: Path, more: str = "") -> list[Record]:
    task = Task(compiled(case, workspace=workspace, more=more), workspace, run_folder)
    return run_ranks(train_rank, case.world_size, task, init=False)


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_ends_train_one_weight(case: Case, workspace: Path, alone: Training, tmp_path: Path) -> None:
    records = train(case, workspace=workspace, run_folder=tmp_path, more=COMPARED)
    found = records[0]
    assert found.gradients.keys() == alone.gradients.keys()
    worst, error = worst_gradient(found.gradients, alone.gradients)
    assert error < 1e-12, worst
    assert worst_relative([step.loss for step in found.metrics], alone.losses) < 1e-12
    assert worst_relative([step.grad_norm for step in found.metrics], alone.grad_norms) < 1e-11
    assert not disagreements(records)


@pytest.mark.slow
@pytest.mark.parametrize("case", [PP4, TP], ids=lambda case: case.name)
def test_random_weights_are_those_of_one_process(case: Case, workspace: Path, tmp_path: Path) -> None:
    """Not those of a linear layer, which other models draw from another distribution."""
    found = [
        train(replace(one, weights="random"), workspace=workspace, run_folder=tmp_path)
        for one in (replace(_TIED, mesh={}), case)
    ]
    assert all(record.initial == found[0][0].initial for record in found[1])
    assert not disagreements(found[1])


def flip(state: State, op: Op, position: Position) -> None:
    """A bit of the last stage's copy, before it is compared in step 2."""
    if isinstance(op, CompareReplicas) and position.step == 2 and state[Run].coordinate(MeshDim.PP) == 1:
        local_of(state[nn.Module].get_parameter("lm_head.weight")).data.view(-1).view(torch.int64)[7] ^= 1


def test_copies_that_differ_end_the_run(workspace: Path, tmp_path: Path) -> None:
    graph = compiled(FSDP, workspace=workspace, more=COMPARED)
    with pytest.raises(RankError, match=rf"differ after step 2 \(they agreed after step 1\): {EMBEDDING}"):
        run_ranks(train_rank, FSDP.world_size, Task(graph, workspace, tmp_path, flip), init=False)


@pytest.mark.slow
def test_a_checkpoint_has_a_tied_weight_once(workspace: Path, tmp_path: Path) -> None:
    """Saved by a pipeline, it goes on in one process, and what that saves in a pipeline."""
    there, back = tmp_path / "there", tmp_path / "back"
    saved = train(FSDP, workspace=workspace, run_folder=tmp_path / "first", more=SAVED)[0].states[SAVE_STEP]
    assert not [name for name in saved if "lm_head" in name]
    for case, step, source, folder in (
        (replace(_TIED, mesh={}), SAVE_STEP, tmp_path / "first", there),
        (PP4, NUM_STEPS, there, back),
    ):
        shutil.copytree(
            step_directory(source / "checkpoints", step=step),
            step_directory(folder / "checkpoints", step=step),
        )
        records = train(case, workspace=workspace, run_folder=folder, more=SAVED)
        assert all(record.states[step] == saved for record in records)
        saved = records[0].states[NUM_STEPS]


@pytest.mark.slow
def test_an_export_has_a_tied_weight_once(workspace: Path, tmp_path: Path) -> None:
    more = SAVED.replace("}", '  export "hf" {\n    when = end\n  }\n}')
    final = train(FSDP, workspace=workspace, run_folder=tmp_path, more=more)[0].final
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    exported = dict(model.named_parameters())
    assert exported.keys() == final.keys()
    assert [name for name in final if not torch.equal(exported[name], final[name])] == []
    with safe_open(tmp_path / "export/hf/model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118  # it is not a mapping


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case.name)
def test_the_first_step_sends_what_the_estimate_has(case: Case, workspace: Path, tmp_path: Path) -> None:
    graph = compiled(case, workspace=workspace)
    for compared in run_compared(graph, workspace / MODEL, tmp_path / "run"):
        assert (compared.code, compared.message, compared.counted) == (None, "", (1,))
