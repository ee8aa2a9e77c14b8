"""A run of a second with two evaluations, and its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planc
from tests.evaluating.plan import TEXT
from tests.plans import write_plan


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run, whose plan is next to it."""
    folder = tmp_path_factory.mktemp("evaluating")
    rows = (json.dumps({"text": f"{number} words, and more. " * 8}) for number in range(60))
    (folder / "rows.jsonl").write_text("\n".join(rows))
    (folder / "held.txt").write_text("".join(f"{number} other words, or fewer. " for number in range(20)))
    plan = write_plan(folder, text=TEXT)
    planc.run(plan, run_dir=folder / "run", quiet=True)
    return folder / "run"
