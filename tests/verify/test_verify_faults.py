"""Verification can fail: every planted bug shows, in the item that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planc.verify.losses import PAIRS, STORED
from planc.verify.outcome import Item
from planc.verify.recipe import CORPUS, MODEL
from planc.verify.verify import compared, run_plan, verify
from tests.parity.cases import Case
from tests.verify.conftest import Prepared, checked
from tests.verify.faults import (
    DP2,
    PAIRS_CHUNKED2,
    PAIRS_CP2,
    PAIRS_DP2,
    PLANTED,
    QUANTIZED_TP2,
    TAUGHT_CHUNKED2,
    TAUGHT_CP2,
    TAUGHT_DP2,
    TAUGHT_PP2,
    TAUGHT_TP2,
    TP2,
    Planted,
    moments_forgotten,
)

Prepare = Callable[[Case], Prepared]


def link(one: Prepared, folder: Path) -> None:
    """Let a folder have the model and the data of a plan that is prepared."""
    for name in (MODEL, CORPUS, PAIRS, STORED):
        (folder / name).symlink_to(one.folder / name)


def failing(planted: Planted, one: Prepared, folder: Path) -> set[Item]:
    """The items in which ranks with the bug differ from one process."""
    link(one, folder)
    records = run_plan(one.shrunk.graph, folder=folder, before_op=planted.fault)
    return {verdict.item for verdict in compared(records, one.training) if not verdict.ok}


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(one, id=f"{one.name} {one.case.name}", marks=() if one.quick else (pytest.mark.slow,))
        for one in PLANTED
    ],
)
def test_a_planted_bug_shows(planted: Planted, prepared: Prepare, tmp_path: Path) -> None:
    assert planted.item in failing(planted, prepared(planted.case), tmp_path)


UNHARMED = (
    *(QUANTIZED_TP2, PAIRS_DP2, PAIRS_CP2, PAIRS_CHUNKED2),
    *(TAUGHT_DP2, TAUGHT_TP2, TAUGHT_CP2, TAUGHT_PP2, TAUGHT_CHUNKED2),
)


@pytest.mark.parametrize(
    "case",
    [TP2, DP2, *(pytest.param(one, marks=pytest.mark.slow) for one in UNHARMED)],
    ids=lambda case: case.name,
)
def test_nothing_shows_without_a_bug(case: Case, prepared: Prepare, tmp_path: Path) -> None:
    one = prepared(case)
    link(one, tmp_path)
    records = run_plan(one.shrunk.graph, folder=tmp_path)
    assert [verdict for verdict in compared(records, one.training) if not verdict.ok] == []


@pytest.mark.slow
def test_a_resume_that_forgets_shows_as_a_resume(workspace: Path) -> None:
    plan = checked(TP2, workspace=workspace)
    assert plan.bound is not None and plan.graph is not None
    report = verify(plan.bound, plan.graph, base=workspace, before_op=moments_forgotten)
    assert [verdict.item for verdict in report.verdicts if not verdict.ok] == [Item.RESUME]
