"""The table of verified plans is of the plans that ship, and what it says still holds."""

from __future__ import annotations

import pytest

from tests.plans import PLANS, canonical_plans
from tests.verify.every_plan import PAGE, Row, page, verified
from tests.verify.items import ITEMS

SAMPLE = ("launch-fsdp4", "llama-3.1-8b-dpo", "launch-pp2-dp2", "olmoe-1b-7b")
EQUAL = f"{len(ITEMS)} of {len(ITEMS)}"
BALANCED = f"{len(ITEMS) + 1} of {len(ITEMS) + 1}"
"""Of a plan that balances experts."""
with_page = pytest.mark.skipif(not PAGE.exists(), reason="`make verify-all` writes the page")


def rows() -> dict[str, list[str]]:
    """The page's cells by plan."""
    lines = (line.strip("|\n").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines())
    table = [[cell.strip() for cell in cells] for cells in lines if len(cells) == 7]
    return {name: cells for name, *cells in table if name != "plan"}


@with_page
def test_every_plan_is_in_the_table_once_in_order() -> None:
    assert list(rows()) == [path.stem for path in canonical_plans()]


@with_page
def test_every_plan_computes_what_one_process_computes() -> None:
    assert {name: cells[2] for name, cells in rows().items() if cells[2] not in (EQUAL, BALANCED)} == {}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_plan_that_ships_computes_what_one_process_computes(name: str) -> None:
    row = verified(PLANS / f"{name}.plan")
    assert row.ok
    assert f"| {EQUAL} |" in row.text()


def test_a_plan_without_a_report_counts_as_no_success() -> None:
    row = Row("x", None, "cannot be shrunk", 1.0)
    assert not row.ok
    assert "0 of 1 plans" in page([row], today="2026-01-01")
