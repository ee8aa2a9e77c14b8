"""A short soak: every kind of fault once would take an hour's tests; a few at random do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.soak import made, soak, taken


@pytest.mark.slow
def test_a_run_that_meets_faults_ends_with_the_weights_of_one_that_does_not(tmp_path: Path) -> None:
    made(tmp_path, seconds=60, num_ranks=2)
    again = tmp_path / "again"
    again.mkdir()
    # As `--undisturbed` has it: what was made before is taken.
    found = soak(again, taken(again, tmp_path, num_ranks=2), num_faults=3, seed=1)
    assert list(found.problems()) == []
    assert len(found.hits) == 3
