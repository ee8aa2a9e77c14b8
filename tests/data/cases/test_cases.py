"""Each case has its right answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.cases.case import Case
from tests.data.cases.table import CASES


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=pytest.mark.slow) for case in CASES],
)
def test_a_case_has_its_answer(case: Case, tmp_path: Path) -> None:
    assert case.problem(tmp_path) is None
