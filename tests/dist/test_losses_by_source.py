"""Losses, labels and tokens of each source of a mixture: transformers' own, and the same on every mesh."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.graph.ops import OpenSource
from planc.graph.sources import training_data
from planc.runtime.data.mixture import JoinedDatasets
from planc.runtime.data.open import MixedData, mixed, open_data
from planc.runtime.data.ops import data_spec
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.observer import SourceMetrics
from planc.runtime.torch.state import LocalBatch
from planc.runtime.torch.training.step_loss import SourceSums
from planc.verify.ranks import Record, Task, train_rank
from tests.dist.first_steps import run_compared
from tests.dist.pool import run_ranks
from tests.plans import PLANS, checked, write_plan
from tests.slow import slow_except

LENGTH, SEQUENCES = 32, 8
PLAN = f"""\
model {{
  hf = "model"
  weights = pretrained
  dtype = float64
}}

mesh {{
  dp_shard = 1
}}

context_parallel on cp {{
}}

tensor_parallel on tp {{
  auto
}}

fsdp on dp_shard, cp {{
  "model.layers.*" -> unit
}}

data {{
  sequence_length = {LENGTH}
  micro_batch = 2
  packing = none

  source "short" {{
    source = jsonl("short.jsonl")
    weight = 0.6
  }}

  source "long" {{
    source = jsonl("long.jsonl")
    weight = 0.3
  }}

  source "rare" {{
    source = jsonl("rare.jsonl")
    weight = 0.1
  }}

  eval "held" {{
    source = jsonl("long.jsonl")
    every = 2 steps
    sequences = 4
  }}
}}

optimizer {{
  kind = adamw(lr = 1e-2)
}}

train {{
  steps = 4
  log_every = 1 steps
  tokens_per_step = {SEQUENCES * LENGTH}
}}
"""
PIPELINE = (("context_parallel", "pipeline on pp {\n}\n\ncontext_parallel"),)
GUARD = (("optimizer {", "guard {\n  nonfinite = skip\n}\n\noptimizer {"),)
REPLICAS = (("fsdp on dp_shard, cp {", "fsdp on dp_shard, cp {\n  replicate_on = dp_replicate"),)
CHUNKS = ("train.loss_chunks=4",)
VOCABULARY = (("  auto\n", '  auto\n  override "lm_head" -> colwise(output = Shard(-1))\n'),)
UNWEIGHTED = tuple((f"    weight = {weight}\n", "") for weight in ("0.6", "0.3", "0.1"))
MESHES: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    "one": ((), ()),
    "one, in chunks": (CHUNKS, ()),
    "one, guarded": ((), GUARD),
    "dp2": (("mesh.dp_shard=2",), ()),
    "tp2": (("mesh.tp=2",), ()),
    "tp2, vocabulary": (("mesh.tp=2",), VOCABULARY),
    "tp2, vocabulary in chunks": (("mesh.tp=2", *CHUNKS), VOCABULARY),
    "cp2": (("mesh.cp=2",), ()),
    "pp2": (("mesh.pp=2",), PIPELINE),
    "pp2 dp2, in chunks": (("mesh.pp=2", "mesh.dp_shard=2", *CHUNKS), PIPELINE),
    "dp2 cp2, in chunks": (("mesh.dp_shard=2", "mesh.cp=2", *CHUNKS), ()),
    "dp2 tp2, vocabulary": (("mesh.dp_shard=2", "mesh.tp=2"), VOCABULARY),
    "replicas of tp2": (("mesh.dp_replicate=2", "mesh.tp=2"), REPLICAS),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are not constant, and documents of which most sequences have few labels."""
    folder = tmp_path_factory.mktemp("sources")
    text = Path(__file__).read_text(encoding="utf-8")
    for name, first, number, most in (("short", 0, 11, 9), ("long", 900, 17, 31), ("rare", 2_000, 3, 20)):
        lines = (
            json.dumps({"text": text[first + 40 * one :][: 2 + 7 * one % most]}) for one in range(number)
        )
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "model").mkdir()
    config = (PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8")
    (folder / "model" / "config.json").write_text(config, encoding="utf-8")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.02, std=0.1)
    model.to(torch.float32).save_pretrained(folder / "model")
    return folder


def graph_of(folder: Path, name: str, *, edits: Sequence[tuple[str, str]] = ()) -> Graph:
    settings, of_mesh = MESHES[name]
    write_plan(folder, text=PLAN, edits=(*of_mesh, *edits))
    graph = checked(folder / "x.plan", *settings).graph
    assert graph is not None
    return graph


def trained(graph: Graph, folder: Path, run_folder: Path) -> list[Record]:
    return run_ranks(train_rank, graph.world_size, Task(graph, folder, run_folder), init=False)


def sources_of(graph: Graph, folder: Path) -> JoinedDatasets:
    training = training_data(graph)
    ops = [op for op in graph.setup if isinstance(op, OpenSource)]
    opened = [
        MixedData(
            op.label,
            op.weight,
            open_data(data_spec(op, training=training), base=folder, model_vocab_size=260),
        )
        for op in ops
    ]
    joined = mixed(opened, seed=training.shuffle_seed).dataset
    assert isinstance(joined, JoinedDatasets)
    return joined


def by_transformers(folder: Path, data: JoinedDatasets, ids: Sequence[int]) -> list[tuple[float, int]]:
    """The loss and labels of the rows of each source among some sequences, with the first weights."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    found = []
    for source in range(len(data.datasets)):
        rows = [data[one] for one in ids if data.place(one)[0] == source]
        losses = [torch.zeros(0, dtype=torch.float64)]
        for inputs, labels in rows:
            with torch.no_grad():
                logits = model(torch.from_numpy(inputs)[None]).logits[0]
            kept = torch.from_numpy(labels) != IGNORED_LABEL
            losses.append(cross_entropy(logits[kept], torch.from_numpy(labels)[kept], reduction="none"))
        joined = torch.cat(losses)
        found.append((joined.mean().item() if len(joined) else 0.0, len(joined)))
    return found


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("weighted", [True, False])
def test_the_losses_of_a_source_are_transformers_over_its_rows(
    folder: Path, tmp_path: Path, weighted: bool
) -> None:
    graph = graph_of(folder, "one", edits=() if weighted else UNWEIGHTED)
    data = sources_of(graph, folder)
    (record,) = trained(graph, folder, tmp_path)
    first = record.metrics[0]
    expected = by_transformers(folder, data, first.sample_ids)
    assert [(one.label, one.labels) for one in first.sources] == list(
        zip(data.labels, (number for _, number in expected), strict=True)
    )
    for one, (loss, number) in zip(first.sources, expected, strict=True):
        assert one.loss == (pytest.approx(loss, rel=1e-9) if number else None)
    assert sum(number > 0 for _, number in expected) > 1


@pytest.mark.parametrize("weighted", [True, False])
def test_tokens_and_epochs_count_the_sequences_of_each_source(
    folder: Path, tmp_path: Path, weighted: bool
) -> None:
    graph = graph_of(folder, "one", edits=() if weighted else UNWEIGHTED)
    data = sources_of(graph, folder)
    seen = np.zeros(3, dtype=int)
    for step in trained(graph, folder, tmp_path)[0].metrics:
        taken = np.bincount([data.place(one)[0] for one in step.sample_ids], minlength=3)
        seen += taken
        assert [one.tokens for one in step.sources] == (taken * LENGTH).tolist()
        sizes = [one.num_sequences for one in data.datasets]
        assert [one.epoch for one in step.sources] == pytest.approx((seen / sizes).tolist(), rel=1e-12)
        assert step.epoch == pytest.approx(seen.sum() / sum(sizes), rel=1e-12)


def parts(step: Sequence[SourceMetrics]) -> list[tuple[str, int, int, float]]:
    return [(one.label, one.tokens, one.labels, one.epoch) for one in step]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    "name",
    slow_except(
        [one for one in MESHES if one != "one"],
        *("one, guarded", "tp2, vocabulary in chunks", "pp2 dp2, in chunks", "dp2 cp2, in chunks"),
    ),
)
def test_every_mesh_has_the_losses_of_one_process(folder: Path, tmp_path: Path, name: str) -> None:
    (alone,) = trained(graph_of(folder, "one"), folder, tmp_path / "one")
    records = trained(graph_of(folder, name), folder, tmp_path / "many")
    for record in records:
        for one, other in zip(alone.metrics, record.metrics, strict=True):
            assert parts(other.sources) == parts(one.sources)
            assert sum(each.labels for each in other.sources) == other.labels == one.labels
            total = sum((each.loss or 0.0) * each.labels for each in other.sources)
            assert total / other.labels == pytest.approx(other.loss, rel=1e-12)
            for each, alike in zip(one.sources, other.sources, strict=True):
                assert alike.loss == (None if each.loss is None else pytest.approx(each.loss, rel=1e-8))


def test_a_nan_of_one_source_stays_in_it() -> None:
    sums = SourceSums(torch.zeros((2, 2), dtype=torch.float64))
    labels = torch.tensor([[5, 5], [5, IGNORED_LABEL]])
    for part in (torch.tensor([torch.nan, 1.0, 2.0]), torch.tensor([0.0])):
        sums.keep(part)
    sums.add(LocalBatch(labels, labels, labels, sources=torch.tensor([1, 0])))
    assert sums.sums[0].tolist() == [2.0, 1.0]
    assert sums.sums[1].isnan().tolist() == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp2 tp2, vocabulary", "pp2 dp2, in chunks"])
def test_the_sums_are_in_the_collectives_that_a_run_predicts(folder: Path, tmp_path: Path, name: str) -> None:
    for found in run_compared(graph_of(folder, name), folder / "model", tmp_path):
        assert (found.code, found.counted) == (None, (1,))
