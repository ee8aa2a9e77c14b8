"""What the estimate calls exact, against a real run and a rehearsal: collectives, and every state's bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from planc.api import check_source
from planc.deep_check.check import Counted, counted_collectives, predicted_collectives
from planc.estimate.activations import activations
from planc.estimate.estimate import estimate
from planc.estimate.rank_work import RankWork, rank_work
from planc.estimate.result import Estimate
from planc.graph.graph import Graph
from planc.inventory.load import load_inventory
from planc.runtime.ranks.groups import groups_of
from planc.runtime.rehearsal.findings import Rehearsal
from planc.runtime.rehearsal.rehearse import rehearse
from planc.source import SourceFile
from tests.dist.pool import run_ranks
from tests.estimate.recorder import Recorded, record_rank
from tests.parity.cases import CP2_DP2, CP2_TP2, TP2_DP2, TP2_REPLICATE2, Case, compile_case, plan_text
from tests.parity.ranks import Task

NARROW = ("fsdp.param_dtype=bfloat16", "fsdp.reduce_dtype=float32")
TP2 = {"tp": 2}
QUICK = (
    Case("TP2·DP2", "auto, 257 rows, accumulate", TP2_DP2, model="llama-uneven", tensor_parallel="auto"),
    Case("TP2", "sequence parallel, selective", TP2, recomputes=True, recomputation="selective"),
    Case("DP4", "HSDP 2x2", {"dp_replicate": 2, "dp_shard": 2}, micro_batch=1),
    Case("CP2·DP2", "ring, recompute", CP2_DP2, recomputes=True),
    Case("TP2·DP2", "lowest frozen", TP2_DP2, micro_batch=2, frozen=("model.embed_tokens", "model.layers.0")),
)
SLOW = (
    Case("TP2·DP2", "8 bits", TP2_DP2, settings=("optimizer.kind=adamw_8bit(lr = 1e-3, block = 8)",)),
    Case("TP2·DP2", "bfloat16 moments", TP2_DP2, settings=("optimizer.kind=adamw_bf16(lr = 1e-3)",)),
    Case("TP2·DP2", "qwen3, bfloat16, accumulate", TP2_DP2, model="qwen3", micro_batch=1, settings=NARROW),
    Case("TP2", "sequence parallel, recompute", TP2, recomputes=True),
    Case("TP2·DP2", "whole replicas", TP2_REPLICATE2, replicas="whole", micro_batch=2),
    Case("CP2·TP2", "ulysses, recompute", CP2_TP2, rotate="ulysses", balance="none", recomputes=True),
    Case("TP2", "sequence parallel", TP2),
    Case("TP2", "qwen3", TP2, model="qwen3"),
    Case("TP2", "auto, recompute", TP2, tensor_parallel="auto", recomputes=True),
    Case("TP2·DP2", "tied", TP2_DP2, model="llama-tied"),
    Case("TP2·DP2", "tied, accumulate", TP2_DP2, model="llama-tied", micro_batch=1),
    Case("TP2·DP2", "recompute", TP2_DP2, recomputes=True, micro_batch=2),
    Case("TP2·DP2", "dp_replicate", TP2_REPLICATE2),
    Case("TP2", "auto, selective", TP2, tensor_parallel="auto", recomputes=True, recomputation="selective"),
    Case("CP2·DP2", "ring, selective", CP2_DP2, recomputes=True, recomputation="selective"),
    Case("DP4", "257 rows", {"dp_shard": 4}, model="llama-uneven"),
    Case("CP2·TP2", "allgather, recompute", CP2_TP2, rotate="allgather", recomputes=True),
    Case("CP2·DP2", "allgather, bfloat16", CP2_DP2, rotate="allgather", settings=NARROW),
    Case("CP4", "ulysses", {"cp": 4}, rotate="ulysses", balance="none"),
    Case("DP2·CP2·TP2", "ring", {"dp_shard": 2, "cp": 2, "tp": 2}, micro_batch=2),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """A graph's estimate, what its ranks did, and its rehearsal."""

    graph: Graph
    estimate: Estimate
    ranks: list[Recorded]
    rehearsal: Rehearsal


def measure(graph: Graph, model: str, *, workspace: Path, tmp_path: Path) -> Compared:
    inventory = load_inventory(workspace / model, cache_dir=workspace).inventory
    task = Task(graph, workspace, tmp_path / "run")
    ranks = run_ranks(record_rank, graph.world_size, task, init=False)
    return Compared(graph, estimate(graph, inventory), ranks, rehearse(graph, base=workspace))


def recorded_collectives(compared: Compared) -> Counted:
    """What rank 0 really called, without the groups of one rank, which send nothing."""
    groups = groups_of(compared.graph, rank=0)
    calls: Counted = Counter()
    for op, found in compared.ranks[0].calls.items():
        if op == "log":  # not part of every step
            continue
        for (kind, ranks, num_bytes), count in found.items():
            if len(ranks) > 1:
                calls[kind, groups[ranks], num_bytes] += count
    return calls


def saved_bytes(recorded: Recorded, work: RankWork) -> int:
    """Bytes of activations that forward saved: no weights, gathered ones included, and no rotary tables."""
    shapes = {layout.tp_shape for layout in work.layouts.values()}
    weights = shapes | {shape[::-1] for shape in shapes}
    found = [(shape, size) for shape, size in recorded.saved if shape not in weights]
    return sum(size for shape, size in found if len(shape) != 4 or shape[1] > 1)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "case",
    [
        Case("TP2", "", TP2),
        Case("TP2", "auto", TP2, tensor_parallel="auto"),
        Case("TP2", "qwen3", TP2, model="qwen3"),
        Case("TP2", "recompute", TP2, recomputes=True),
        Case("CP2", "ring", {"cp": 2}),
        Case("CP2", "ulysses", {"cp": 2}, rotate="ulysses", balance="none"),
    ],
    ids=lambda case: case.name,
)
def test_a_rank_saves_the_activations_that_are_estimated(case: Case, workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(case, workspace=workspace)
    inventory = load_inventory(workspace / case.model, cache_dir=workspace).inventory
    work = rank_work(graph, inventory)
    recorded = run_ranks(record_rank, 2, Task(graph, workspace, tmp_path / "run"), init=False)
    assert saved_bytes(recorded[0], work) == activations(work).kept


def assert_exact(compared: Compared) -> None:
    first, rehearsal = compared.ranks[0], compared.rehearsal
    assert rehearsal.failures == () and rehearsal.measured is not None
    recorded = recorded_collectives(compared)
    assert predicted_collectives(compared.estimate) == recorded
    assert counted_collectives(rehearsal.measured) == recorded
    states = [(one.parameter_bytes, one.gradient_bytes, one.optimizer_bytes) for one in compared.ranks]
    memory = compared.estimate.memory
    names = ("parameters", "gradients", "optimizer")
    estimated = tuple(memory.part(name).num_bytes for name in names)
    assert estimated == states[0]
    assert memory.part("gradients between micro steps").num_bytes == first.unreduced_bytes
    assert all(one <= most for rank in states for one, most in zip(rank, estimated, strict=True))


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_collectives_and_states_are_those_of_a_run(case: Case, workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(case, workspace=workspace)
    assert_exact(measure(graph, case.model, workspace=workspace, tmp_path=tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_more_meshes_send_what_is_estimated(case: Case, workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(case, workspace=workspace)
    assert_exact(measure(graph, case.model, workspace=workspace, tmp_path=tmp_path))


def edited(case: Case, *edits: tuple[str, str], workspace: Path) -> Graph:
    text = plan_text(case)
    for old, new in edits:
        assert old in text, f"nothing to edit: {old}"
        text = text.replace(old, new)
    checked = check_source(SourceFile("edited.plan", text), base=workspace)
    assert checked.graph is not None, checked.diagnostics
    return checked.graph


@pytest.mark.slow
def test_recomputing_a_part_of_a_layer_repeats_only_what_it_holds(workspace: Path, tmp_path: Path) -> None:
    case = Case("TP2", "", TP2, recomputes=True)
    graph = edited(case, ('"model.layers.*" -> full', '"model.layers.*.mlp" -> full'), workspace=workspace)
    assert_exact(measure(graph, case.model, workspace=workspace, tmp_path=tmp_path))


@pytest.mark.slow
def test_units_of_a_list_and_of_kept_parameters_are_gathered_once(workspace: Path, tmp_path: Path) -> None:
    case = Case("DP2", "", {"dp_shard": 2}, micro_batch=1)
    units = '"model.layers.*" -> unit\n  ["model.norm", "lm_head"] -> unit(reshard_after_forward = false)'
    graph = edited(case, ('"model.layers.*" -> unit', units), workspace=workspace)
    assert_exact(measure(graph, case.model, workspace=workspace, tmp_path=tmp_path))


@pytest.mark.slow
def test_a_head_that_gathers_its_output_sends_the_vocabulary(workspace: Path, tmp_path: Path) -> None:
    case = Case("TP2", "", TP2)
    edit = (
        "colwise(input = Shard(1), output = Shard(-1))",
        "colwise(input = Shard(1), output = Replicate())",
    )
    graph = edited(case, edit, workspace=workspace)
    assert_exact(measure(graph, case.model, workspace=workspace, tmp_path=tmp_path))
