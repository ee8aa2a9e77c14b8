"""Evaluations: blocks inside `data`, under names of a plan's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planc.api import check_source
from planc.estimate.estimate import estimate
from planc.graph.ops import Evaluate, OpenEvaluation
from planc.plan import data
from planc.show.estimate import memory_text
from planc.show.origin import values
from planc.show.resolved import resolved_text
from planc.source import SourceFile
from planc.tables import format_bytes
from planc.vocab import MeshDim
from tests.plan.resolving import edited, fault, resolved
from tests.plans import FULL, PLANS

SHUFFLE = "  shuffle_seed = 42\n"
BLOCKS = """\
  eval "held_out" { source = text("held_out/*.txt"), every = 20 steps, patience = 3
    min_delta = 0.5, keep_best = 2 }
  eval "code-2" {
    source = python_stdlib()
    every = 30 steps
    sequences = 8
  }
"""


def with_blocks(text: str = BLOCKS) -> tuple[str, str]:
    return SHUFFLE, SHUFFLE + text


def test_a_plan_chooses_the_labels() -> None:
    found = resolved(edited(with_blocks())).data.eval
    assert found == {
        "held_out": data.EvalSpec(data.TextFiles(("held_out/*.txt",)), None, 20, None, 3, 0.5, 2),
        "code-2": data.EvalSpec(data.PythonStdlib(), None, 30, 8, None, 0.0, 0),
    }


def test_every_setting_of_every_evaluation_has_its_place_and_value() -> None:
    plan = resolved(edited(with_blocks()))
    assert values(plan)["data.eval.code-2.sequences"] == "8"
    assert plan.span("data.eval.code-2.every").line == plan.span("data.eval.code-2").line + 2


@pytest.mark.parametrize(
    ("block", "code", "text"),
    [
        ("eval { every = 1 steps }", "P209", "`eval` has no label"),
        ('eval "a b" { source = python_stdlib(), every = 1 steps }', "P205", "up to 64 letters"),
        ('eval "a.b" { source = python_stdlib(), every = 1 steps }', "P205", "up to 64 letters"),
        ('eval "x" { every = 1 steps }', "P209", "`source`"),
        ('eval "x" { source = python_stdlib(), every = 0 steps }', "P206", "1"),
        ('eval "x" { source = python_stdlib(), every = 1 steps, batches = 2 }', "P202", "no key `batches`"),
    ],
)
def test_a_fault_is_found_where_it_is_written(block: str, code: str, text: str) -> None:
    problem = fault(edited(with_blocks(f"  {block}\n")))
    assert problem.code.code == code
    assert text in problem.primary.text


def test_a_second_evaluation_of_one_name_is_found() -> None:
    block = '  eval "x" { source = python_stdlib(), every = 1 steps }\n'
    assert fault(edited(with_blocks(2 * block))).code.code == "P204"


def test_the_graph_opens_and_runs_each_in_the_plans_order() -> None:
    checked = check_source(SourceFile("x.plan", FULL.replace(*with_blocks())), base=PLANS)
    assert checked.graph is not None, checked.diagnostics
    opened = [op.label for op in checked.graph.setup if isinstance(op, OpenEvaluation)]
    run = [op for op in checked.graph.step if isinstance(op, Evaluate)]
    assert opened == [op.label for op in run] == ["held_out", "code-2"]
    assert [inner.name for inner in run[0].body] == ["cp.shard", "forward", "loss"]
    assert run[0].over == (MeshDim.DP_SHARD,)


def test_resolved_text_says_all_of_it_and_means_the_same() -> None:
    checked = check_source(SourceFile("x.plan", FULL.replace(*with_blocks())), base=PLANS)
    assert checked.bound is not None and checked.graph is not None
    text = resolved_text(checked.bound)
    assert 'eval "held_out" {' in text and "sequences = none" in text
    again = check_source(SourceFile("x.plan", text), base=PLANS)
    assert again.graph == checked.graph


def test_sources_of_evaluations_are_checked_as_those_of_the_data(tmp_path: Path) -> None:
    block = '  eval "talk" { source = chat("talk.jsonl"), every = 1 steps }\n'
    checked = check_source(SourceFile("x.plan", FULL.replace(*with_blocks(block))), base=PLANS)
    assert [one.code.code for one in checked.diagnostics] == ["P731", "P738"]


def test_estimates_count_the_best_checkpoints_on_disk() -> None:
    """Those of `keep_last`, the two best ones, and the one that is being saved."""
    text = re.sub(r"expect \{.*?\n\}", "", FULL, flags=re.DOTALL).replace(
        "save_every = 30", "save_every = 10"
    )
    counts = []
    for blocks in (text, text.replace(*with_blocks(), 1)):
        found = check_source(SourceFile("full.plan", blocks), base=PLANS)
        assert found.graph is not None and found.inventory is not None, found.diagnostics
        estimated = estimate(found.graph, found.inventory)
        assert estimated.checkpoint is not None
        counts.append(estimated.checkpoint.at_once)
        whole = f"up to {format_bytes(estimated.checkpoint.num_bytes * counts[-1])} of checkpoints on disk"
        assert (f"{whole}, with 2 best ones" in memory_text(estimated)) == (len(counts) == 2)
    assert counts[1] == counts[0] + 2
