"""Plans as long as a program writes them: inside the budgets, and answered as short ones are."""

from __future__ import annotations

import pytest

from planc.api import MAX_FINDINGS, check_source
from planc.graph.graph import plan_hash
from planc.source import SourceFile
from tests.bench.long_plan import long_plan
from tests.plans import PLANS

LARGE = long_plan(5000, model="llama-3.1-405b", num_layers=126)


def test_a_plan_of_five_thousand_lines_is_sound() -> None:
    assert LARGE.count("\n") == 5000
    checked = check_source(SourceFile("x.plan", LARGE), base=PLANS)
    found = [(one.code.code, one.primary.text) for one in checked.diagnostics]
    assert found == [("P707", "no `checkpoint` block, and 1_200_000 steps")]


def test_a_line_for_every_module_means_what_patterns_mean() -> None:
    short = long_plan(100, model="llama-3.1-405b", num_layers=126)
    graphs = [check_source(SourceFile("x.plan", text), base=PLANS).graph for text in (LARGE, short)]
    assert len({plan_hash(graph) for graph in graphs if graph is not None}) == 1
    assert None not in graphs


@pytest.mark.slow
def test_a_slip_on_every_line_gives_as_many_findings_as_anybody_reads() -> None:
    text = LARGE.replace('proj"', 'prooj"')
    checked = check_source(SourceFile("x.plan", text), base=PLANS)
    assert len(checked.diagnostics) == MAX_FINDINGS
    assert [note for note in checked.diagnostics[-1].notes if note.startswith("findings not shown: ")]
    lines = [one.primary.span.line for one in checked.diagnostics]
    assert lines == sorted(lines)
