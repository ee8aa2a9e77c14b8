"""The classes of transformers for each task: what was measured, and that a row of it still holds."""

from __future__ import annotations

import pytest

from tests.dist.pool import start_server
from tests.models.judge import Status
from tests.models.page import read_rows
from tests.models.tasks import TABLES

MEASURED = [
    pytest.param(*case, marks=pytest.mark.slow)
    for task, table in TABLES.items()
    for case in ((task, model_type) for model_type in read_rows(table.results))
]


@pytest.mark.parametrize("task", TABLES)
def test_nothing_that_check_accepts_trains_otherwise_than_one_process(task: str) -> None:
    rows, known = read_rows(TABLES[task].results), TABLES[task].known_types()
    # Not every type has been measured.
    assert list(rows) == [model_type for model_type in known if model_type in rows]
    statuses = {cell.status for row in rows.values() for cell in row.cells.values()}
    assert not statuses & {Status.DIFFERENT, Status.FAILED}


def test_many_classes_are_equal_over_ranks() -> None:
    equal = [
        (task, model_type)
        for task, table in TABLES.items()
        for model_type, row in read_rows(table.results).items()
        if all(row.cells[column].status is Status.EQUAL for column in ("one", "fsdp", "solve"))
    ]
    assert len(equal) >= 60


@pytest.mark.parametrize("task, model_type", MEASURED)
def test_a_row_still_holds(task: str, model_type: str) -> None:
    start_server()
    row = TABLES[task].judged_row(model_type)
    known = read_rows(TABLES[task].results)[model_type]
    found = {column: (cell.status, cell.codes) for column, cell in row.cells.items()}
    assert found == {column: (cell.status, cell.codes) for column, cell in known.cells.items()}
