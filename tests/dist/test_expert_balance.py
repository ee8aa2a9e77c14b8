"""The balance of experts: loss and gradients of every mesh are those of the definition, written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.graph.ops import OpenData
from planc.runtime.data.open import open_data
from planc.runtime.data.ops import data_spec
from planc.runtime.observer import StepMetrics
from planc.verify.ranks import Task
from tests.dist.balance_by_hand import ByHand, trained_rank
from tests.dist.pool import run_ranks
from tests.plans import PLANS, checked, write_plan

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
  source = text("corpus.txt")
  sequence_length = {LENGTH}
  micro_batch = 2
}}

optimizer {{
  kind = adamw(lr = 1e-3)
}}

balance {{
  loss = switch(coefficient = 0.5)
}}

train {{
  steps = 1
  tokens_per_step = {SEQUENCES * LENGTH}
}}
"""
SETS = {
    "sequence": [[one] for one in range(SEQUENCES)],
    "micro_batch": [[2 * one, 2 * one + 1] for one in range(SEQUENCES // 2)],
    "step": [[*range(SEQUENCES)]],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of which none is constant, and whose routers prefer some experts."""
    folder = tmp_path_factory.mktemp("balance")
    (folder / "corpus.txt").write_text("Vor dem Gesetz steht ein Türhüter. " * 200, encoding="utf-8")
    (folder / "documents").mkdir()
    for number in range(12):
        text = "Aber der Türhüter sagt, jetzt nicht."[number : number + 8 + 5 * (number % 5)]
        (folder / "documents" / f"{number}.txt").write_text(text, encoding="utf-8")
    (folder / "model").mkdir()
    config = (PLANS / "models" / "tiny-qwen3-moe" / "config.json").read_text(encoding="utf-8")
    (folder / "model" / "config.json").write_text(config, encoding="utf-8")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.to(torch.float64).save_pretrained(folder / "model")
    return folder


def graph_of(folder: Path, *settings: str, edits: tuple[tuple[str, str], ...] = ()) -> Graph:
    write_plan(folder, text=PLAN, edits=edits)
    found = checked(folder / "x.plan", *settings)
    assert found.graph is not None
    return found.graph


@cache
def by_hand(folder: Path, ids: tuple[int, ...], data: tuple[tuple[str, str], ...]) -> ByHand:
    """`data` edits the plan."""
    (op,) = (op for op in graph_of(folder, edits=data).setup if isinstance(op, OpenData))
    dataset = open_data(data_spec(op, training=op), base=folder, model_vocab_size=260).dataset
    pairs = [dataset[one] for one in ids]
    inputs, labels = (torch.stack([torch.from_numpy(pair[part]) for pair in pairs]) for part in (0, 1))
    return ByHand(folder / "model", inputs, labels)


def first_step(graph: Graph, folder: Path, run_folder: Path) -> tuple[StepMetrics, dict[str, Tensor]]:
    """The metrics, which all ranks have, and the gradients of all stages."""
    records = run_ranks(trained_rank, graph.world_size, Task(graph, folder, run_folder), init=False)
    lines = [one.metrics[0] for one in records]
    assert len({(one.balance_loss, one.z_loss) for one in lines}) == 1
    return lines[0], records[0].gradients


def assert_equal(
    gradients: dict[str, Tensor], hand: ByHand, added: Tensor, *, frozen: tuple[str, ...] = ()
) -> None:
    of_hand = {
        name: one for name, one in hand.gradients(added).items() if not any(part in name for part in frozen)
    }
    assert of_hand.keys() == gradients.keys()
    for name, wanted in of_hand.items():
        worst = (gradients[name] - wanted).abs().max() / wanted.abs().max()
        assert worst < 1e-12, f"{name}: {worst:.1e}"


RECOMPUTED = (
    "context_parallel",
    'activation_checkpoint {\n  "model.layers.*" -> full\n}\n\ncontext_parallel',
)
SELECTIVE = (RECOMPUTED[0], RECOMPUTED[1].replace("full", "selective"))
PIPELINE = ("context_parallel", "pipeline on pp {\n}\n\ncontext_parallel")
INTERLEAVED = (
    PIPELINE[0],
    PIPELINE[1].replace("{\n}", "{\n  schedule = interleaved(stages_per_rank = 2)\n}"),
)
ZERO_BUBBLE = (PIPELINE[0], PIPELINE[1].replace("{\n}", "{\n  schedule = zero_bubble\n}"))
DOCUMENTS = ('text("corpus.txt")', 'text("documents/*.txt")\n  packing = none')
"""One document to a sequence, of which the rest is padding: each set of tokens has other labels."""
WHOLE = (PLAN[PLAN.index("fsdp") : PLAN.index("data {")], "")
EXPERTS = ("fsdp on", "expert_parallel on dp_shard {\n  size = 2\n  auto\n}\n\nfsdp on")
EXPERTS_OF_4 = (EXPERTS[0], EXPERTS[1].replace("2", "4"))
EXPERTS_OF_BOTH = (EXPERTS[0], EXPERTS_OF_4[1].replace("dp_shard", "dp_shard, cp"))
EXPERTS_OVER_TP = (EXPERTS[0], EXPERTS_OF_4[1].replace("dp_shard", "dp_shard, cp, tp"))
SEQUENCE_PARALLEL = ("on tp {\n  auto\n", "on tp {\n  auto(sequence_parallel = true)\n")
ULYSSES = ("on cp {\n", "on cp {\n  rotate = ulysses\n  load_balancer = none\n")


def frozen(*patterns: str) -> tuple[str, str]:
    rules = "".join(f'  "{one}" -> frozen\n' for one in patterns)
    return "context_parallel", f"freeze {{\n{rules}}}\n\ncontext_parallel"


@dataclass(frozen=True)
class Case:
    name: str
    over: str
    settings: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    pooled: bool = False
    frozen: tuple[str, ...] = ()
    """Parts of the names of parameters that are not trained."""


CASES = (
    Case("dp2 cp2, recomputed", "micro_batch", ("mesh.dp_shard=2", "mesh.cp=2"), (RECOMPUTED,), pooled=True),
    Case("tp2 pp2, recomputed", "sequence", ("mesh.tp=2", "mesh.pp=2"), (PIPELINE, RECOMPUTED)),
    Case("dp4 ep2", "sequence", ("mesh.dp_shard=4",), (EXPERTS,)),
    Case("one", "sequence"),
    Case("one", "micro_batch", pooled=True),
    Case(
        "routers frozen",
        "sequence",
        ("mesh.dp_shard=2",),
        (frozen("model.layers.*.mlp.gate"),),
        frozen=("mlp.gate",),
    ),
    Case(
        "routers of the lowest layer frozen",
        "micro_batch",
        edits=(frozen("model.embed_tokens", "model.layers.0"),),
        pooled=True,
        frozen=("embed_tokens", "layers.0."),
    ),
    Case("dp2 ep2", "step", ("mesh.dp_shard=2", "data.micro_batch=4"), (EXPERTS,)),
    Case("dp4 ep2, recomputed", "sequence", ("mesh.dp_shard=4",), (EXPERTS, RECOMPUTED)),
    Case("dp2 ep2 tp2", "sequence", ("mesh.dp_shard=2", "mesh.tp=2"), (EXPERTS,)),
    Case(
        "dp2 ep2, tp2 of sequences",
        "step",
        ("mesh.dp_shard=2", "mesh.tp=2", "data.micro_batch=4"),
        (SEQUENCE_PARALLEL, EXPERTS, RECOMPUTED),
    ),
    Case(
        "dp2 tp2 ep4",
        "sequence",
        ("mesh.dp_shard=2", "mesh.tp=2"),
        (SEQUENCE_PARALLEL, EXPERTS_OVER_TP, RECOMPUTED),
    ),
    Case(
        "cp2 tp2 ep4, padded",
        "micro_batch",
        ("mesh.cp=2", "mesh.tp=2"),
        (SEQUENCE_PARALLEL, DOCUMENTS, EXPERTS_OVER_TP),
        pooled=True,
    ),
    Case(
        "dp2 tp2 ep4",
        "step",
        ("mesh.dp_shard=2", "mesh.tp=2", "data.micro_batch=4"),
        (SEQUENCE_PARALLEL, EXPERTS_OVER_TP),
    ),
    Case("dp2 ep2 pp2", "sequence", ("mesh.dp_shard=2", "mesh.pp=2"), (PIPELINE, EXPERTS)),
    Case("dp2 ep2 cp2", "micro_batch", ("mesh.dp_shard=2", "mesh.cp=2"), (EXPERTS,), pooled=True),
    Case("dp2 ep2, ulysses", "sequence", ("mesh.dp_shard=2", "mesh.cp=2"), (ULYSSES, EXPERTS)),
    Case(
        "dp2 ep2 pp2 tp2",
        "micro_batch",
        ("mesh.dp_shard=2", "mesh.pp=2", "mesh.tp=2"),
        (PIPELINE, EXPERTS, RECOMPUTED),
    ),
    Case(
        "dp2 cp2 ep4",
        "step",
        ("mesh.dp_shard=2", "mesh.cp=2", "data.micro_batch=4"),
        (EXPERTS_OF_BOTH,),
        pooled=True,
    ),
    Case(
        "dp2 cp2 ep4, padded", "micro_batch", ("mesh.dp_shard=2", "mesh.cp=2"), (DOCUMENTS, EXPERTS_OF_BOTH)
    ),
    Case("dp4 ep4 cp2", "step", ("mesh.dp_shard=4", "mesh.cp=2"), (EXPERTS_OF_4,), pooled=True),
    Case("one, at once", "sequence", ("data.micro_batch=8",)),
    Case(
        "dp2 ep2 pp2 tp2, four micro-batches",
        "sequence",
        ("mesh.dp_shard=2", "mesh.pp=2", "mesh.tp=2", "data.micro_batch=1"),
        (PIPELINE, EXPERTS),
    ),
    Case("padded", "sequence", edits=(DOCUMENTS,)),
    Case(
        "dp2 cp2 ep2, padded",
        "micro_batch",
        ("mesh.dp_shard=2", "mesh.cp=2"),
        (DOCUMENTS, EXPERTS, RECOMPUTED),
    ),
    Case("one, selective", "micro_batch", edits=(SELECTIVE,)),
    Case("dp2", "sequence", ("mesh.dp_shard=2",)),
    Case("dp2", "micro_batch", ("mesh.dp_shard=2",)),
    Case("dp4", "sequence", ("mesh.dp_shard=4",)),
    Case("dp4", "step", ("mesh.dp_shard=4",)),
    Case("dp2 cp2", "step", ("mesh.dp_shard=2", "mesh.cp=2", "data.micro_batch=4"), pooled=True),
    Case("dp2 tp2", "step", ("mesh.dp_shard=2", "mesh.tp=2", "data.micro_batch=4")),
    Case("whole replicas", "step", ("mesh.dp_replicate=2", "data.micro_batch=4"), (WHOLE,)),
    Case("whole replicas", "sequence", ("mesh.dp_replicate=2", "mesh.tp=2"), (WHOLE,)),
    Case("tp2, recomputed", "sequence", ("mesh.tp=2",), (RECOMPUTED,)),
    Case("tp2 of sequences", "sequence", ("mesh.tp=2",), (SEQUENCE_PARALLEL,)),
    Case("cp2", "sequence", ("mesh.cp=2",)),
    Case("cp2, no balance of load", "micro_batch", ("mesh.cp=2", "context_parallel.load_balancer=none")),
    Case("cp2 tp2", "micro_batch", ("mesh.cp=2", "mesh.tp=2")),
    Case("pp2", "micro_batch", ("mesh.pp=2",), (PIPELINE,)),
    Case("pp2 interleaved", "sequence", ("mesh.pp=2",), (INTERLEAVED,)),
    Case("pp2 zero bubble", "sequence", ("mesh.pp=2",), (ZERO_BUBBLE,)),
    Case("pp2 cp2", "sequence", ("mesh.pp=2", "mesh.cp=2"), (PIPELINE,)),
)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "case",
    [pytest.param(one, marks=() if number < 3 else pytest.mark.slow) for number, one in enumerate(CASES)],
    ids=lambda case: f"{case.name}-{case.over}",
)
def test_every_mesh_adds_the_losses_by_hand(folder: Path, tmp_path: Path, case: Case) -> None:
    """The same on every mesh, with one micro-batch in a step or several, and however often a layer runs."""
    layers = "pooled" if case.pooled else "each"
    loss = f"balance.loss=switch(coefficient = 0.5, over = {case.over}, layers = {layers})"
    graph = graph_of(folder, *case.settings, loss, "balance.z_loss=0.25", edits=case.edits)
    line, gradients = first_step(graph, folder, tmp_path)
    hand = by_hand(folder, line.sample_ids, tuple(edit for edit in case.edits if edit is DOCUMENTS))
    switch, z = 0.5 * hand.switch(sets=SETS[case.over], pooled=case.pooled), 0.25 * hand.z()
    assert line.loss == pytest.approx(hand.loss.item(), rel=1e-12)
    assert line.balance_loss == pytest.approx(switch.item(), rel=1e-12)
    assert line.z_loss == pytest.approx(z.item(), rel=1e-12)
    assert_equal(gradients, hand, switch + z, frozen=case.frozen)
