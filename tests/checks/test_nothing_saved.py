"""Runs that end without a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_plan
from tests.plans import TINY, canonical_plans, write_plan


@pytest.mark.parametrize(("steps", "codes"), [(1000, []), (1001, ["P707"]), (100_000, ["P707"])])
def test_a_long_run_without_a_checkpoint_block_is_warned_of(
    tmp_path: Path, steps: int, codes: list[str]
) -> None:
    plan = write_plan(tmp_path, text=TINY, edits=[("steps = 10", f"steps = {steps}")])
    assert [one.code.code for one in check_plan(plan).diagnostics] == codes


def test_the_help_mends_it(tmp_path: Path) -> None:
    edits = [("steps = 10\n}", "steps = 5000\n}\ncheckpoint { save_every = 500 steps }")]
    assert check_plan(write_plan(tmp_path, text=TINY, edits=edits)).diagnostics == ()


@pytest.mark.slow
def test_no_shipped_plan_is_warned_of() -> None:
    for path in canonical_plans():
        assert "P707" not in [one.code.code for one in check_plan(path).diagnostics], path.name
