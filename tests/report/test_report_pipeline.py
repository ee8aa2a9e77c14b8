"""The picture of a pipeline: every action once, at its time, and a bounded number of them."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from planc.api import check_source
from planc.graph.pipeline import pipeline_of
from planc.report.pipeline import pipeline_section
from planc.source import SourceFile
from tests.plans import PLANS

PIPELINED = "launch-pp2-dp2.plan"
_BOX = re.compile(
    r"<title>rank (\d+): ([a-z ]+) of micro batch (\d+)(?: in stage (\d+))?</title>"
    r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"'
)
_SLOT, _MARGIN = 22, 64


def boxes(*settings: str) -> list[tuple[int, str, int, float, float]]:
    """Rank, what, micro batch, and the slots from and to."""
    given = [SourceFile(f"--set[{index}]", one) for index, one in enumerate(settings)]
    text = (PLANS / PIPELINED).read_text(encoding="utf-8").partition("expect {")[0]
    graph = check_source(SourceFile(PIPELINED, text), base=PLANS, settings=given).graph
    assert graph is not None
    pipeline = pipeline_of(graph)
    assert pipeline is not None
    actions = []
    for rank, what, number, _, x, width in _BOX.findall(pipeline_section(pipeline)):
        start, end = ((edge - _MARGIN) / _SLOT for edge in (float(x), float(x) + float(width) + 1))
        actions.append((int(rank), what, int(number), start, end))
    return actions


def test_1f1b_of_two_ranks_is_drawn_as_it_runs() -> None:
    """Of rank 0 two forwards, then a backward of two slots for each further forward."""
    found = sorted(one for one in boxes() if one[0] == 0)
    times = {(what, number): (start, end) for _, what, number, start, end in found}
    assert times["forward", 0] == (0, 1) and times["forward", 1] == (1, 2)
    assert times["backward", 0] == (4, 6) and times["forward", 2] == (6, 7)
    assert times["backward", 3] == (13, 15)


@pytest.mark.parametrize(
    ("schedule", "kinds"),
    [("gpipe", 2), ("one_f_one_b", 2), ("interleaved(stages_per_rank = 2)", 2), ("zero_bubble", 3)],
)
def test_actions_are_drawn_once_and_ranks_do_one_at_a_time(schedule: str, kinds: int) -> None:
    found = boxes(f"pipeline.schedule={schedule}")
    stages = 2 if schedule.startswith("interleaved") else 1
    assert len(found) == 2 * stages * kinds * 4
    assert len({what for _, what, *_ in found}) == kinds
    for rank in (0, 1):
        own = sorted((start, end) for at, _, _, start, end in found if at == rank)
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(own))


def test_of_a_long_step_the_first_actions_are_drawn() -> None:
    found = boxes("train.tokens_per_step=2_048_000")
    assert 2_990 <= len(found) <= 3_010
    assert {rank for rank, *_ in found} == {0, 1}
