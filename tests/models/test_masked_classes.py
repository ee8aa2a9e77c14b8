"""The masked language models of transformers: what was measured, and that a row of it still holds."""

from __future__ import annotations

import pytest

from tests.dist.pool import start_server
from tests.models.judge import Status
from tests.models.masked import COLUMNS, RESULTS, judged_row, known_types
from tests.models.page import read_rows
from tests.slow import slow_except

SAMPLE = ("bert", "modernbert", "roberta")


def test_nothing_that_check_accepts_trains_otherwise_than_one_process() -> None:
    rows = read_rows(RESULTS)
    assert list(rows) == list(known_types())
    statuses = {cell.status for row in rows.values() for cell in row.cells.values()}
    assert not statuses & {Status.DIFFERENT, Status.FAILED}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", slow_except(SAMPLE))
def test_a_row_still_holds(model_type: str) -> None:
    start_server()
    row = judged_row(model_type, known_types()[model_type], COLUMNS)
    known = read_rows(RESULTS)[model_type]
    found = {column: (cell.status, cell.codes) for column, cell in row.cells.items()}
    assert found == {column: (cell.status, cell.codes) for column, cell in known.cells.items()}
