"""What comparing replicas is said to send, against what a rank sends; and a guard's own agreement."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from planc.deep_check.check import counted_collectives, predicted_collectives
from planc.estimate.estimate import estimate
from planc.inventory.load import load_inventory
from planc.runtime.rehearsal.rehearse import rehearse
from tests.dist.pool import run_ranks
from tests.estimate.recorder import record_rank
from tests.parity.cases import TP2_DP2, TP2_REPLICATE2, Case, compile_case
from tests.parity.ranks import Task

COMPARED = ("guard.replicas_every=2 steps",)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "case",
    [
        Case("TP2·DP2", "norms", TP2_DP2),
        Case("TP2·DP2", "dp_replicate", TP2_REPLICATE2),
        Case("CP2", "", {"cp": 2}),
    ],
    ids=lambda case: case.name,
)
def test_a_comparison_sends_what_is_estimated(case: Case, workspace: Path, tmp_path: Path) -> None:
    settings = COMPARED if "cp" not in case.mesh else ()
    graph = compile_case(replace(case, settings=settings), workspace=workspace)
    found = estimate(graph, load_inventory(workspace / case.model, cache_dir=workspace).inventory)
    ranks = run_ranks(record_rank, graph.world_size, Task(graph, workspace, tmp_path / "run"), init=False)
    sent = Counter(
        {
            (str(kind), len(members), num_bytes): count
            for (kind, members, num_bytes), count in ranks[0].calls.get("replicas.compare", {}).items()
        }
    )
    estimated = found.comparison.collectives if found.comparison else ()
    assert sent == Counter({(str(one.kind), one.group_size, one.input_bytes): one.count for one in estimated})
    assert bool(sent) == bool(settings)


def test_a_guard_agrees_over_tp_as_estimated_and_rehearsed(workspace: Path) -> None:
    case = Case("TP2", "", {"tp": 2}, settings=("guard.nonfinite=skip",))
    graph = compile_case(case, workspace=workspace)
    found = estimate(graph, load_inventory(workspace / case.model, cache_dir=workspace).inventory)
    guards = [one for one in found.collectives if one.cause == "step.guard"]
    assert [(one.over, one.count, one.input_bytes) for one in guards] == [(("tp",), 1, 8)]
    rehearsal = rehearse(graph, base=workspace)
    assert rehearsal.failures == () and rehearsal.measured is not None
    assert counted_collectives(rehearsal.measured) == predicted_collectives(found)
