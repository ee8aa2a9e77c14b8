"""A short soak: every kind of fault once would take an hour's tests; a few at random do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.soak import soak


@pytest.mark.slow
def test_a_run_that_meets_faults_ends_with_the_weights_of_one_that_does_not(tmp_path: Path) -> None:
    found = soak(tmp_path, seconds=60, num_faults=3, num_ranks=2, seed=1)
    assert list(found.problems()) == []
    assert len(found.hits) == 3
