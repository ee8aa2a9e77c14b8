"""What is said to be sent in some steps only, against what ranks send; and what an op's effects leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.deep_check.check import counted_collectives, predicted_collectives
from planc.estimate.at_intervals import at_intervals
from planc.estimate.estimate import estimate
from planc.estimate.rank_work import rank_work
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import Accumulate
from planc.inventory.load import load_inventory
from planc.runtime.ranks.groups import groups_of
from planc.runtime.rehearsal.rehearse import rehearse
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.dist.pool import run_ranks
from tests.estimate.recorder import record_rank
from tests.parity.cases import CP2_DP2, TP2_DP2, TP2_REPLICATE2, Case, compile_case, plan_text
from tests.parity.ranks import Task

COMPARED = ("guard.replicas_every=2 steps",)
EVALUATION = 'eval "held_out" { source = text("corpus.txt"), every = 2 steps }'


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "case",
    [
        Case("TP2·DP2", "norms", TP2_DP2),
        Case("TP2·DP2", "dp_replicate", TP2_REPLICATE2),
        Case("DP4", "HSDP 2x2", {"dp_replicate": 2, "dp_shard": 2}, micro_batch=1),
        Case("CP2", "", {"cp": 2}),
    ],
    ids=lambda case: case.name,
)
def test_what_is_sent_when_due_is_what_is_estimated(case: Case, workspace: Path, tmp_path: Path) -> None:
    settings = COMPARED if "cp" not in case.mesh else ()
    graph = compile_case(replace(case, settings=settings), workspace=workspace)
    inventory = load_inventory(workspace / case.model, cache_dir=workspace).inventory
    work = rank_work(graph, inventory)
    estimated = {
        one.op: Counter((str(each.kind), each.group_size, each.input_bytes) for each in one.collectives)
        for one in at_intervals(work, is_cuda=False, logs_sample_ids=True)
    }
    ranks = run_ranks(record_rank, graph.world_size, Task(graph, workspace, tmp_path / "run"), init=False)
    assert set(estimated) == ({"log", "replicas.compare"} if settings else {"log"})
    for op, found in estimated.items():
        sent: Counter[tuple[str, int, int]] = Counter()
        for (kind, members, num_bytes), count in ranks[0].calls[op].items():
            sent[str(kind), len(members), num_bytes] += count if len(members) > 1 else 0
        assert +sent == found, op


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "case",
    [
        Case("TP2·DP2", "", TP2_DP2, settings=COMPARED),
        Case("DP4", "HSDP 2x2", {"dp_replicate": 2, "dp_shard": 2}, micro_batch=1, settings=COMPARED),
        Case("CP2·DP2", "ring, recompute", CP2_DP2, recomputes=True),
    ],
    ids=lambda case: case.name,
)
def test_an_op_sends_over_no_mesh_dims_but_those_of_its_effects(
    case: Case, workspace: Path, tmp_path: Path
) -> None:
    text = plan_text(case).replace("  shuffle_seed", f"  {EVALUATION}\n  shuffle_seed")
    checked = check_source(SourceFile("case.plan", text), base=workspace)
    assert checked.graph is not None, checked.diagnostics
    stated = effects_of(checked.graph)
    ranks = run_ranks(record_rank, 4, Task(checked.graph, workspace, tmp_path / "run"), init=False)
    groups = groups_of(checked.graph, rank=0)
    sent = {
        op: {dim for _, members, _ in calls if len(members) > 1 for dim in groups[members]}
        for op, calls in ranks[0].calls.items()
    }
    assert {"log", "evaluate"} <= {op for op, dims in sent.items() if dims}
    assert {op: dims - stated[op] for op, dims in sent.items() if dims - stated[op]} == {}


def effects_of(graph: Graph) -> dict[str, set[MeshDim]]:
    """The mesh dims over which each op of a step says that it communicates."""
    return {op.name: set(op.communicates) for op in _ops(graph)}


def _ops(graph: Graph) -> Iterator[Op]:
    for op in graph.step:
        yield op
        if isinstance(op, Accumulate):
            yield from op.body


def test_a_guard_agrees_over_tp_as_estimated_and_rehearsed(workspace: Path) -> None:
    case = Case("TP2", "", {"tp": 2}, settings=("guard.nonfinite=skip",))
    graph = compile_case(case, workspace=workspace)
    found = estimate(graph, load_inventory(workspace / case.model, cache_dir=workspace).inventory)
    guards = [one for one in found.collectives if one.cause == "step.guard"]
    assert [(one.over, one.count, one.input_bytes) for one in guards] == [(("tp",), 1, 8)]
    rehearsal = rehearse(graph, base=workspace)
    assert rehearsal.failures == () and rehearsal.measured is not None
    assert counted_collectives(rehearsal.measured) == predicted_collectives(found)
