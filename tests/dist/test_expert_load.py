"""The load of experts in metrics: the same counts on every mesh, as transformers' own routers choose."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.graph.ops import CountExperts, OpenData
from planc.runtime.data.open import open_data
from planc.runtime.data.ops import data_spec
from planc.runtime.torch.training.expert_load import ExpertLoad
from planc.verify.ranks import Record, Task, train_rank
from tests.dist.pool import run_ranks
from tests.plans import PLANS, checked, write_plan

LENGTH, SEQUENCES, NUM_LAYERS, PER_TOKEN = 32, 8, 4, 2
PLAN = f"""\
model {{
  hf = "model"  # planc: ignore[P725] what it is about
  weights = pretrained
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
  source = text("corpus.txt")
  sequence_length = {LENGTH}
  micro_batch = 2
}}

optimizer {{
  kind = adamw(lr = 1e-2)
}}

train {{
  steps = 3
  log_every = 2 steps
  tokens_per_step = {SEQUENCES * LENGTH}
}}
"""
RECOMPUTED_PIPELINE = "pipeline on pp {\n}\n\n"
RECOMPUTED = 'activation_checkpoint {\n  "model.layers.*" -> full\n}\n\ncontext_parallel'
RECOMPUTED_PIPELINE += RECOMPUTED
EVALUATED = (
    '  micro_batch = 2\n  eval "held" { source = text("corpus.txt"), every = 2 steps, sequences = 4 }\n'
)
MESHES: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    "one": ((), ()),
    "one, recomputed and evaluated": (
        (),
        (("context_parallel", RECOMPUTED), ("  micro_batch = 2\n", EVALUATED)),
    ),
    "dp2": (("mesh.dp_shard=2",), ()),
    "tp2": (("mesh.tp=2",), ()),
    "cp2": (("mesh.cp=2",), ()),
    "pp2, recomputed": (("mesh.pp=2",), (("context_parallel", RECOMPUTED_PIPELINE),)),
    "dp2 tp2": (("mesh.dp_shard=2", "mesh.tp=2"), ()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    (folder / "corpus.txt").write_text("Vor dem Gesetz steht ein Türhüter. " * 200, encoding="utf-8")
    (folder / "model").mkdir()
    config = (PLANS / "models" / "tiny-qwen3-moe" / "config.json").read_text(encoding="utf-8")
    (folder / "model" / "config.json").write_text(config, encoding="utf-8")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.to(torch.float32).save_pretrained(folder / "model")
    return folder


def graph_of(folder: Path, mesh: str) -> Graph:
    settings, edits = MESHES[mesh]
    write_plan(folder, text=PLAN, edits=edits)
    found = checked(folder / "x.plan", *settings)
    assert found.graph is not None
    return found.graph


def trained(graph: Graph, folder: Path, run_folder: Path) -> list[Record]:
    return run_ranks(train_rank, graph.world_size, Task(graph, folder, run_folder), init=False)


def by_transformers(graph: Graph, folder: Path, ids: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The choices of the routers' own outputs, for the samples of a step with the first weights."""
    (op,) = (op for op in graph.setup if isinstance(op, OpenData))
    dataset = open_data(data_spec(op, training=op), base=folder, model_vocab_size=260).dataset
    inputs = torch.stack([torch.from_numpy(dataset[one][0]) for one in ids])
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model")
    with torch.no_grad():
        logits: tuple[Tensor, ...] = model(inputs, output_router_logits=True).router_logits
    counts = (Counter(one.topk(PER_TOKEN).indices.flatten().tolist()) for one in logits)
    return {
        f"model.layers.{layer}.mlp.experts": tuple(count[expert] for expert in range(4))
        for layer, count in enumerate(counts)
    }


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_counts_the_tokens_of_each_expert(folder: Path, tmp_path: Path, mesh: str) -> None:
    """In logged steps, the second and the last, and each token once, however often a layer runs."""
    graph = graph_of(folder, mesh)
    records = trained(graph, folder, tmp_path)
    for record in records:
        loads = {one.step: one.expert_load for one in record.metrics}
        assert sorted(loads) == [2, 3]
        for load in loads.values():
            assert len(load) == NUM_LAYERS
            assert {sum(counts) for counts in load.values()} == {SEQUENCES * LENGTH * PER_TOKEN}
        assert loads == {one.step: one.expert_load for one in records[0].metrics}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("mesh", ["one", "dp2", "tp2", "cp2"])
def test_the_counts_are_those_of_the_routers(folder: Path, tmp_path: Path, mesh: str) -> None:
    settings, edits = MESHES[mesh]
    write_plan(folder, text=PLAN, edits=(*edits, ("log_every = 2 steps", "log_every = 1 steps")))
    graph = checked(folder / "x.plan", *settings).graph
    assert graph is not None
    line = trained(graph, folder, tmp_path)[0].metrics[0]
    assert line.step == 1
    assert line.expert_load == by_transformers(graph, folder, line.sample_ids)


def test_an_expert_that_starves_is_reported_once() -> None:
    """When it gets no token of the many, not of the few; and again if it has had some in between."""
    op = CountExperts(layers=(("layers.0", 4), ("layers.1", 4)))
    load = ExpertLoad(op, device=torch.device("cpu"))
    fed, starved = (30, 20, 40, 10), (60, 0, 40, 0)
    assert [*load.newly_starving({"layers.0": fed, "layers.1": (3, 0, 2, 0)})] == []
    (text,) = load.newly_starving({"layers.0": fed, "layers.1": starved})
    assert text == "2 experts of layers.1 got no token, equal shares would be 25: 1, 3"
    assert [*load.newly_starving({"layers.0": fed, "layers.1": starved})] == []
    assert [*load.newly_starving({"layers.0": fed, "layers.1": (60, 1, 39, 0)})] == []
    assert len([*load.newly_starving({"layers.0": starved, "layers.1": starved})]) == 2


def test_experts_in_compiled_layers_are_not_counted(folder: Path) -> None:
    compiled = 'compile {\n  "model.layers.{1..3}" -> region\n}\n\ncontext_parallel'
    write_plan(folder, text=PLAN, edits=(("context_parallel", compiled),))
    graph = checked(folder / "x.plan").graph
    assert graph is not None
    (op,) = (op for op in graph.setup if isinstance(op, CountExperts))
    assert op.layers == (("model.layers.0.mlp.experts", 4),)


def test_a_dense_model_has_nothing_to_count(folder: Path) -> None:
    dense = json.loads((PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8"))
    assert "num_experts" not in dense
    text = PLAN.replace('"model"  # planc: ignore[P725] what it is about', '"models/tiny-llama"')
    write_plan(folder, text=text.replace("weights = pretrained", "weights = random"))
    graph = checked(folder / "x.plan").graph
    assert graph is not None and not [op for op in graph.setup if isinstance(op, CountExperts)]
