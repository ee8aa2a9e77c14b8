"""Pipelines beyond the lattice: weights from files, checkpoints on other meshes, and exports."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from planc.api import check_source
from planc.graph.ops import SplitPipeline
from planc.graph.pipeline import pipeline_of
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.errors import ExitCode
from planc.source import SourceFile
from planc.verify.compare import worst_gradient
from planc.vocab import DType
from tests.dist.faulty_steps import Fault, run_faulty
from tests.dist.first_steps import run_compared
from tests.dist.held_messages import most_held
from tests.dist.pool import run_ranks
from tests.lattice import cells
from tests.lattice.cells import Cell, Mesh, compile_cell
from tests.parity.cases import (
    NUM_STEPS,
    PIPELINES,
    SAVE_STEP,
    SEQUENCE_LENGTH,
    Case,
    compile_case,
    make_workspace,
    plan_text,
)
from tests.parity.compare import parity
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import train_reference
from tests.slow import slow_except

PP4, PP2_DP2, PP2_TP2 = PIPELINES
ONE = Case("1", model="llama-deep")
INTERLEAVED = "interleaved(stages_per_rank = 2)"
FEATURES = {
    "whole documents": (
        'documents.jsonl")\n  packing = whole',
        'activation_checkpoint {\n  "model.layers.*" -> selective\n}\n',
    ),
    "loss in chunks": ('documents.jsonl")', ""),
    "compiled layers": (
        'documents.jsonl")',
        'compile {\n  backend = aot_eager\n  "model.layers.*" -> region\n}\n',
    ),
}
"""What follows the data's source, and more blocks."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("pipelines") / "workspace")
    texts = ["stages pass on what they get " * (1 + 5 * number % 7) for number in range(60)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "documents.jsonl").write_text(lines, encoding="utf-8")
    return folder


def train(case: Case, *, workspace: Path, run_folder: Path) -> list[Record]:
    task = Task(compile_case(case, workspace=workspace, saves=True), workspace, run_folder)
    return run_ranks(train_rank, case.world_size, task, init=False)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", PIPELINES, ids=lambda case: case.name)
def test_a_pipeline_with_weights_from_files_trains_as_one_process(case: Case, workspace: Path) -> None:
    row = parity(case, workspace=workspace, reference=train_reference(case.model, workspace=workspace))
    assert row.problems == ()


def resume(case: Case, *, step: int, source: Path, workspace: Path, run_folder: Path) -> list[Record]:
    """The records of a run that goes on from another run's checkpoint."""
    shutil.copytree(
        step_directory(source / "checkpoints", step=step),
        step_directory(run_folder / "checkpoints", step=step),
    )
    return train(case, workspace=workspace, run_folder=run_folder)


@pytest.mark.parametrize(
    "case", slow_except((ONE, PP2_TP2), PP2_TP2.name, name=lambda case: case.name), ids=lambda case: case.name
)
def test_a_checkpoint_goes_from_mesh_to_mesh_bit_for_bit(case: Case, workspace: Path, tmp_path: Path) -> None:
    """pp 4 saves; another mesh resumes, and saves; pp 4 resumes what it saved."""
    first, there, back = (tmp_path / name for name in ("first", "there", "back"))
    saved = train(PP4, workspace=workspace, run_folder=first)[0].states[SAVE_STEP]
    assert {f"optimizer.model.layers.{layer}.mlp.up_proj.weight.exp_avg" for layer in range(4)} < saved.keys()
    records = resume(case, step=SAVE_STEP, source=first, workspace=workspace, run_folder=there)
    for record in records:
        assert record.first_step == SAVE_STEP + 1
        assert record.states[SAVE_STEP] == saved
    for record in resume(PP4, step=NUM_STEPS, source=there, workspace=workspace, run_folder=back):
        assert record.states[NUM_STEPS] == records[0].states[NUM_STEPS]


@pytest.mark.slow
def test_an_export_of_a_pipeline_has_every_stage(workspace: Path, tmp_path: Path) -> None:
    case = replace(PP2_TP2, settings=("checkpoint.export.hf.when=end",))
    final = train(case, workspace=workspace, run_folder=tmp_path)[0].final
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export/hf")
    exported = dict(model.named_parameters())
    assert exported.keys() == final.keys()
    assert [name for name in final if not torch.equal(exported[name], final[name])] == []


def trained(case: Case, feature: str, *, workspace: Path, run_folder: Path) -> Record:
    """Rank 0's record of a plan with a feature, in float64."""
    source, blocks = FEATURES[feature]
    text = (
        plan_text(case)
        .replace('text("corpus.txt")', f'jsonl("{source}')
        .replace("seed =", "dtype = float64\n  seed =", 1)
    )
    if feature == "loss in chunks":
        text = text.replace("train {", "train {\n  loss_chunks = 4")
    checked = check_source(SourceFile("x.plan", text + blocks), base=workspace)
    assert checked.graph is not None, checked.diagnostics
    return run_ranks(train_rank, case.world_size, Task(checked.graph, workspace, run_folder), init=False)[0]


_IN_BFLOAT16 = "replicate_on = dp_replicate\n  param_dtype = bfloat16\n  reduce_dtype = float32"
UNITS = {"layers": '"model.layers.*" -> unit', "parts of layers": '"model.layers.*.mlp" -> unit', "none": ""}


@pytest.mark.parametrize("units", slow_except(UNITS, "none"))
def test_a_stage_sends_what_its_layers_compute_in(units: str, workspace: Path, tmp_path: Path) -> None:
    """Also where the stages' own units hold all of a layer, or what no other one does."""
    text = plan_text(PP2_DP2).replace("replicate_on = dp_replicate", _IN_BFLOAT16)
    checked = check_source(SourceFile("x.plan", text.replace(UNITS["layers"], UNITS[units])), base=workspace)
    assert checked.graph is not None, checked.diagnostics
    assert [op.dtype for op in checked.graph.setup if isinstance(op, SplitPipeline)] == [DType.BFLOAT16]
    records = run_ranks(train_rank, 4, Task(checked.graph, workspace, tmp_path / "run"), init=False)
    losses = [step.loss for step in records[0].metrics]
    expected = train_reference(PP2_DP2.model, workspace=workspace).losses
    assert losses == pytest.approx(expected, rel=0.02)
    assert losses != pytest.approx(expected, rel=1e-6)


SCHEDULED = [
    (feature, schedule)
    for feature in FEATURES
    for schedule in ("gpipe", "one_f_one_b", INTERLEAVED, "zero_bubble")
    if (feature, schedule) != ("compiled layers", "zero_bubble")
]
"""P320 is about what is left out."""


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(("feature", "schedule"), SCHEDULED)
def test_a_feature_computes_in_stages_what_it_does_in_one_process_bit_for_bit(
    feature: str, schedule: str, workspace: Path, tmp_path: Path
) -> None:
    """The same micro-batches in the same order are the same sums; only the norm is summed by stage."""
    case = Case("PP2", "", {"pp": 2}, model="llama-deep", micro_batch=2, schedule=schedule)
    alone = trained(replace(case, mesh={}), feature, workspace=workspace, run_folder=tmp_path)
    staged = trained(case, feature, workspace=workspace, run_folder=tmp_path)
    assert staged.gradients.keys() == alone.gradients.keys()
    different = [
        name for name, one in alone.gradients.items() if not torch.equal(staged.gradients[name], one)
    ]
    assert different == []
    losses = [[step.loss for step in record.metrics] for record in (staged, alone)]
    assert losses[0][0] == losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


WHOLE_BETWEEN = {
    "all layers": '  "model.layers.*" -> prepare_input_output(desired = Shard(1))\n',
    "some layers": '  "model.layers.{0,2}" -> prepare_input(input = Replicate(), desired = Shard(1))\n'
    '  "model.layers.{1,3}" -> prepare_input_output(input = Shard(1), desired = Shard(1))\n',
}
"""Layers shard the sequence within, and pass on whole sequences: all of them, or every other one."""


def on_shards_within_layers(rules: str) -> str:
    """The plan of two stages over tp."""
    whole = {
        "embedding_rowwise(output = Shard(1))": "embedding_rowwise",
        '  "model.norm" -> sequence_parallel\n': rules,
        "colwise(input = Shard(1), output = Shard(-1))": "colwise(output = Shard(-1))",
    }
    text = plan_text(replace(PP2_TP2, weights="pretrained"))
    for old, new in whole.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("name", slow_except(WHOLE_BETWEEN, "some layers"))
def test_stages_send_whole_sequences_between_layers_that_shard_them(
    name: str, workspace: Path, tmp_path: Path
) -> None:
    source = SourceFile("x.plan", on_shards_within_layers(WHOLE_BETWEEN[name]))
    graph = check_source(source, base=workspace).graph
    assert graph is not None
    split = next(op for op in graph.setup if isinstance(op, SplitPipeline))
    assert (split.shape, split.on_shards) == ((2, SEQUENCE_LENGTH, 64), ())
    alone = train_reference(PP2_TP2.model, workspace=workspace)
    found = run_ranks(train_rank, 4, Task(graph, workspace, tmp_path, stop_after=1), init=False)[0]
    worst, error = worst_gradient(found.gradients, alone.gradients, floor=1e-3 * alone.grad_norms[0])
    assert error < 1e-5, worst


def test_stages_that_send_sequences_in_two_layouts_are_refused(workspace: Path) -> None:
    text = on_shards_within_layers(WHOLE_BETWEEN["some layers"]).replace("pp = 2", "pp = 4")
    found = check_source(SourceFile("x.plan", text), base=workspace).diagnostics
    (refused,) = (one for one in found if one.code.code == "P320")
    assert refused.primary.text == (
        "stages send hidden states in other layouts: `model.layers.0` in Shard(1), "
        "`model.layers.1` in Replicate(), `model.layers.2` in Shard(1)"
    )


HELD = {
    "gpipe": Case("PP4", "", {"pp": 4}, model="llama-deep", micro_batch=1, schedule="gpipe"),
    "one_f_one_b": PP4,
    "interleaved": replace(PP2_DP2, micro_batch=1, schedule=INTERLEAVED),
}
"""Cases by schedule, of eight or four micro-batches."""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", HELD)
def test_no_rank_holds_more_messages_than_the_graph_has(name: str, workspace: Path, tmp_path: Path) -> None:
    case = HELD[name]
    task = Task(compile_case(case, workspace=workspace), workspace, tmp_path)
    pipeline = pipeline_of(task.graph)
    assert pipeline is not None
    assert 1 <= pipeline.split.max_sends < pipeline.num_micro_batches
    found = run_ranks(most_held, case.world_size, task, init=False)
    assert max(found) == pipeline.split.max_sends


def test_a_loss_that_is_no_number_stops_all_stages_and_names_its_sequences(workspace: Path) -> None:
    case = Case("PP2", "", {"pp": 2}, model="llama-deep", micro_batch=2)
    for told in run_faulty(workspace, case, Fault("grads.clip", (2,), "step loss", math.nan)):
        assert told.code is ExitCode.NUMERICS
        assert told.states[-1] == told.states[1]


def test_a_skipped_step_is_skipped_on_all_stages(workspace: Path) -> None:
    case = Case("PP2", "", {"pp": 2}, model="llama-deep", micro_batch=2)
    settings = (
        "guard.loss_spike=skip(window = 5 steps)",
        "guard.nonfinite=skip(at_most = 2)",
        "guard.replicas_every=1 step",
    )
    for told in run_faulty(workspace, case, Fault("grads.clip", (3,), "step loss", math.nan), *settings):
        assert told.code is None
        assert told.states[3] == told.states[2] != told.states[1]
        assert [step.step for step in told.steps if step.is_skipped] == [3]


@pytest.mark.slow
def test_an_evaluation_in_stages_has_the_loss_of_one_process(workspace: Path, tmp_path: Path) -> None:
    found = []
    for number, mesh in enumerate(({}, {"pp": 2}, {"pp": 2})):
        schedule = INTERLEAVED if number == 2 else "one_f_one_b"
        case = Case("", "", mesh, model="llama-deep", micro_batch=2, schedule=schedule)
        block = (
            '  eval "held_out" {\n    source = text("corpus.txt")\n    every = 2 steps\n  }\n  shuffle_seed'
        )
        checked = check_source(
            SourceFile("x.plan", plan_text(case).replace("  shuffle_seed", block)), base=workspace
        )
        assert checked.graph is not None, checked.diagnostics
        task = Task(checked.graph, workspace, tmp_path / str(number))
        records = run_ranks(train_rank, case.world_size, task, init=False)
        found.append([one.loss for step in records[0].metrics for one in step.evaluations])
        assert all(
            [s.evaluations for s in r.metrics] == [s.evaluations for s in records[0].metrics] for r in records
        )
    assert len(found[0]) == NUM_STEPS // 2
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)


COUNTED = (
    Cell(Mesh(1, 2, 1, 1, pp=2), num_micro_steps=3, recomputation="full", schedule="one_f_one_b"),
    Cell(Mesh(1, 2, 1, 1, pp=2), num_micro_steps=3, schedule=INTERLEAVED),
    Cell(Mesh(2, 1, 1, 1, pp=2), whole_replicas=True, num_micro_steps=3, schedule="gpipe"),
    Cell(
        Mesh(1, 1, 1, 2, pp=2),
        sequence_parallel=True,
        loss_parallel=True,
        num_micro_steps=3,
        schedule="one_f_one_b",
    ),
    Cell(Mesh(1, 1, 2, 1, pp=2), context="ring headtail", num_micro_steps=3, schedule="one_f_one_b"),
    Cell(Mesh(1, 2, 1, 1, pp=2), num_micro_steps=3, recomputation="full", schedule="zero_bubble"),
    Cell(Mesh(2, 1, 1, 1, pp=2), whole_replicas=True, num_micro_steps=3, schedule="zero_bubble"),
)


@pytest.mark.slow
@pytest.mark.parametrize("cell", COUNTED, ids=lambda cell: cell.name)
def test_the_first_step_sends_what_the_estimate_has_for_each_pp_rank(cell: Cell, tmp_path: Path) -> None:
    workspace = cells.make_workspace(tmp_path / "workspace")
    _, graph = compile_cell(cell, workspace=workspace)
    for compared in run_compared(graph, workspace / cell.model, tmp_path / "run"):
        assert (compared.code, compared.message, compared.counted) == (None, "", (1,))
