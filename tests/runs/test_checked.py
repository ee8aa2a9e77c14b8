"""Features together: no plan of them ends a check in an exception."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.runs.checked import outcome
from tests.runs.plans import AXES, Row, base_row, random_row, rows
from tests.runs.whole import Workspace

BROKEN = (
    {"model": "tiny-llama-tied", "trained": "lora", "mesh": "pp 2", "micro-batches": "4"},
    {"model": "tiny-llama-tied", "trained": "not the embedding", "mesh": "pp 2", "micro-batches": "4"},
    {"compile": "layers", "loss": "smoothed"},
    {"mesh": "dp_replicate 2", "fsdp": "none"},
)
"""Features that once broke a check."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Workspace(tmp_path_factory.mktemp("checked") / "workspace", Path("plans/models")).folder


@pytest.mark.parametrize("features", BROKEN, ids=lambda features: ", ".join(features.values()))
def test_features_that_broke_a_check_are_accepted(features: Row, base: Path) -> None:
    assert outcome({**base_row(), **features}, base) == "accepted"


def test_plans_are_accepted_or_refused(base: Path) -> None:
    draw = Random(1)
    assert all(outcome(random_row(draw), base) for _ in range(20))


@pytest.mark.slow
def test_every_feature_is_accepted_with_others(base: Path) -> None:
    """A value that every plan refuses would be tried with nothing."""
    met: set[tuple[str, str]] = set()
    for row, _ in rows(lambda row: outcome(row, base) == "accepted", seed=3):
        met |= {*row.items()}
    assert {(axis, value) for axis, values in AXES.items() for value in values} - met == set()
