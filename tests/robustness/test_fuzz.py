"""The long search of `make fuzz`, for a short time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.robustness.fuzz import search, seeds


def test_the_search_starts_from_every_plan_and_page() -> None:
    assert len(seeds()) > 100


@pytest.mark.slow
def test_a_long_search_finds_no_error(tmp_path: Path) -> None:
    assert search(minutes=float(os.environ.get("FUZZ_MINUTES", "2")), seed=0, out=tmp_path) == 0
