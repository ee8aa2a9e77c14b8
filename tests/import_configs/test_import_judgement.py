"""Imports train what a reading of their own says that the configs train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.import_configs.judgement import Case, judged, workspace
from tests.import_configs.reading import Rate, Training
from tests.import_configs.shapes import SHAPES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace(tmp_path_factory.mktemp("judged"))


@pytest.mark.parametrize("case", SHAPES, ids=lambda case: case.name)
def test_an_import_trains_what_the_config_does(case: Case, folder: Path) -> None:
    shown, verdict = judged(case, folder)
    assert verdict in ("the same", "refused"), f"{shown}: {verdict}"


def test_a_reading_that_differs_is_seen(folder: Path) -> None:
    case = next(case for case in SHAPES if case.name == "arguments, constant after warm-up, no clipping")
    other = Training(Rate(1e-3, 50, 0, "linear"), decay=0.1, data="chat:answers", tokens=64)
    _, verdict = judged(Case(case.name, case.files, other, case.options), folder)
    for word in ("clip", "compute", "data", "weights", "decay", "tokens of a step", "lr at step 25"):
        assert word in verdict, verdict
