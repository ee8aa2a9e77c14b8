"""Labels that differ in number from rank to rank, and evaluations: every mesh has the loss of one process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from planc.graph.graph import Graph
from planc.graph.ops import Accumulate, OpenData
from planc.runtime.errors import RunError
from planc.verify.ranks import Record, Task, train_rank
from tests.data.conversing import TALK, save_talks, save_tokenizer
from tests.dist.pool import RankError, run_ranks
from tests.plans import PLANS, checked, write_plan
from tests.slow import slow_except

PLAN = """\
model {
  hf = "models/tiny-llama"
}

mesh {
  dp_shard = 1
}

fsdp on dp_shard, cp {
  "model.layers.*" -> unit(reshard_after_forward = false)
}

context_parallel on cp {
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}

tensor_parallel on tp {
  auto
}

data {
  source = jsonl("train.jsonl")
  sequence_length = 32
  micro_batch = 1
  packing = none
  eval "held_out" { source = jsonl("held_out.jsonl"), every = 2 steps }
  eval "few" { source = jsonl("train.jsonl"), every = 5 steps, sequences = 3 }
}

optimizer {
  kind = adamw(lr = 1e-2)
  clip_grad_norm = 1.0
}

checkpoint {
  save_every = 2 steps
}

train {
  steps = 3
  tokens_per_step = 256
}
"""

MESHES = {
    "dp4": ("mesh.dp_shard=4",),
    "dp2 cp2": ("mesh.dp_shard=2", "mesh.cp=2"),
    "dp2 tp2": ("mesh.dp_shard=2", "mesh.tp=2"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of very different lengths, and conversations of which a small part is an answer."""
    folder = tmp_path_factory.mktemp("meshes")
    text = Path(__file__).read_text(encoding="utf-8")
    for name, first, number in (("train", 0, 24), ("held_out", 3000, 13)):
        lengths = [1 + 7 * place % 61 for place in range(number)]
        texts = [text[first + 40 * place :][:length] for place, length in enumerate(lengths)]
        lines = (json.dumps({"text": one}) for one in texts)
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    save_tokenizer(folder / "tokenizer")
    save_talks(folder / "talks.jsonl", *([*TALK[:end]] for end in (3, 5) * 9))
    write_plan(folder, text=PLAN)
    return folder


def trained(folder: Path, *settings: str, run_folder: Path, stop_after: int | None = None) -> list[Record]:
    graph = checked(folder / "x.plan", *settings).graph
    assert graph is not None
    task = Task(graph, folder, run_folder, stop_after=stop_after)
    return run_ranks(train_rank, graph.world_size, task, init=False)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mesh", slow_except(MESHES, "dp2 cp2"))
@pytest.mark.parametrize("packing", [pytest.param("none", marks=pytest.mark.slow), "isolate", "whole"])
def test_losses_and_evaluations_are_those_of_one_process(
    folder: Path, packing: str, mesh: str, tmp_path: Path
) -> None:
    # In float32, AdamW's first steps turn rounding into 3e-4 of the gradient norm.
    settings = (f"data.packing={packing}", "model.dtype=float64")
    (alone,) = trained(folder, *settings, run_folder=tmp_path / "one")
    ranks = trained(folder, *settings, *MESHES[mesh], run_folder=tmp_path / "many")
    for one, other in zip(alone.metrics, ranks[0].metrics, strict=True):
        assert other.labels == one.labels < other.tokens == 256
        assert other.sample_ids == one.sample_ids
        assert other.loss == pytest.approx(one.loss, rel=1e-12)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-12)
        assert [(found.label, found.labels) for found in other.evaluations] == [
            (found.label, found.labels) for found in one.evaluations
        ]
        losses = [found.loss for found in one.evaluations]
        assert [found.loss for found in other.evaluations] == pytest.approx(losses, rel=1e-12)
    due = [[found.label for found in step.evaluations] for step in alone.metrics]
    assert due == [[], ["held_out"], ["held_out", "few"]]


@pytest.mark.slow
def test_a_conversations_answers_are_the_loss_of_every_mesh(folder: Path, tmp_path: Path) -> None:
    settings = (
        'data.source=chat("talks.jsonl")',
        'data.tokenizer=file("tokenizer")',
        "data.sequence_length=128",
        "train.tokens_per_step=512",
        'model.hf="wide"',
    )
    wide = folder / "wide"
    if not wide.exists():
        wide.mkdir()
        config = json.loads((PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8"))
        (wide / "config.json").write_text(json.dumps({**config, "vocab_size": 320}), encoding="utf-8")
    (alone,) = trained(folder, *settings, run_folder=tmp_path / "one", stop_after=2)
    ranks = trained(
        folder, *settings, "mesh.dp_shard=2", "mesh.cp=2", run_folder=tmp_path / "many", stop_after=2
    )
    # Of four conversations a step; most of their tokens are questions and padding.
    assert alone.metrics[0].labels < 4 * 64 < alone.metrics[0].tokens == 512
    assert [one.labels for one in ranks[0].metrics] == [one.labels for one in alone.metrics]
    expected = [one.loss for one in alone.metrics]
    assert [one.loss for one in ranks[0].metrics] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_an_evaluation_changes_nothing_of_the_training(folder: Path, tmp_path: Path) -> None:
    graph = checked(folder / "x.plan", "mesh.dp_shard=2").graph
    assert graph is not None
    bare = replace(
        graph,
        setup=tuple(op for op in graph.setup if op.name != "data.open_evaluation"),
        step=tuple(op for op in graph.step if op.name != "evaluate"),
    )
    finals = []
    for number, one in enumerate((graph, bare)):
        records = run_ranks(train_rank, 2, Task(one, folder, tmp_path / str(number)), init=False)
        finals.append(records[0].final)
    assert all(finals[0][name].equal(finals[1][name]) for name in finals[0])


@pytest.mark.slow
def test_a_run_with_evaluations_goes_on_at_another_size(folder: Path, tmp_path: Path) -> None:
    (whole,) = trained(folder, run_folder=tmp_path / "whole")
    trained(folder, "mesh.dp_shard=4", run_folder=tmp_path / "parts", stop_after=2)
    again = trained(folder, "mesh.dp_shard=2", run_folder=tmp_path / "parts")[0]
    assert again.first_step == 3
    (last,) = again.metrics
    assert last.sample_ids == whole.metrics[-1].sample_ids
    assert last.loss == pytest.approx(whole.metrics[-1].loss, rel=1e-4)
    assert [one.loss for one in last.evaluations] == pytest.approx(
        [one.loss for one in whole.metrics[-1].evaluations], rel=1e-4
    )


def test_more_sequences_than_an_evaluation_has_are_refused(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own, symlinks=True)
    write_plan(own, text=PLAN, edits=[("sequences = 3", "sequences = 300")])
    with pytest.raises((RunError, RankError), match=r'evaluation "few" has \d+ sequences, not 300'):
        trained(own, run_folder=tmp_path / "run")


def test_data_without_a_label_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "empty.jsonl").write_text('{"text": ""}\n' * 300)
    settings = ('data.source=jsonl("empty.jsonl")', "data.packing=isolate")
    with pytest.raises((RunError, RankError), match="the data has no labels"):
        trained(folder, *settings, run_folder=tmp_path / "run")


def with_micro_batch(graph: Graph, micro_batch: int) -> Graph:
    """The same step in fewer, larger micro-batches."""
    setup = tuple(
        replace(op, micro_batch=micro_batch) if isinstance(op, OpenData) else op for op in graph.setup
    )
    step = tuple(
        replace(op, times=op.times // micro_batch) if isinstance(op, Accumulate) else op for op in graph.step
    )
    return replace(graph, setup=setup, step=step)


def test_an_evaluation_is_the_same_in_micro_batches_of_another_size(folder: Path, tmp_path: Path) -> None:
    graph = checked(folder / "x.plan").graph
    assert graph is not None
    losses = []
    for number, one in enumerate((graph, with_micro_batch(graph, 4))):
        (record,) = run_ranks(train_rank, 1, Task(one, folder, tmp_path / str(number)), init=False)
        losses.append([found.loss for step in record.metrics for found in step.evaluations])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


MIXTURE = """\
  source "web" { source = jsonl("train.jsonl"), weight = 0.7 }
  source "held" { source = jsonl("held_out.jsonl"), weight = 0.3 }
"""


@pytest.mark.slow
def test_a_mixture_is_the_same_on_every_mesh_and_after_a_resume_on_another(
    folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own, symlinks=True)
    write_plan(own, text=PLAN, edits=[('  source = jsonl("train.jsonl")\n', MIXTURE)])
    settings = ("data.packing=whole", "model.dtype=float64")
    (alone,) = trained(own, *settings, run_folder=tmp_path / "one")
    first = trained(own, *settings, *MESHES["dp4"], run_folder=tmp_path / "many", stop_after=2)[0]
    last = trained(own, *settings, *MESHES["dp2 cp2"], run_folder=tmp_path / "many")[0]
    assert last.first_step == 3
    for one, other in zip(alone.metrics, (*first.metrics, *last.metrics), strict=True):
        assert other.sample_ids == one.sample_ids
        assert other.labels == one.labels
        assert other.loss == pytest.approx(one.loss, rel=1e-12)
