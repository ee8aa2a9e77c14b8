"""Settings of an evaluation by which no run is decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_plan
from tests.plans import TINY, write_plan


@pytest.mark.parametrize(
    ("settings", "checkpoint", "text"),
    [
        ("min_delta = 0.1", "", "no `patience` that it applies to"),
        ("patience = 9", "", "9 evaluations after the first, one every 10 steps"),
        ("patience = 8, min_delta = 0.1", "", ""),
        ("keep_best = 1", "", "the plan saves no checkpoint before the end"),
        ("keep_best = 1", "checkpoint { save_every = 25 steps }", "evaluated every 10 steps, saved every 25"),
        ("keep_best = 1", "checkpoint { save_every = 20 steps }", ""),
    ],
)
def test_a_setting_without_effect_is_warned_of(
    tmp_path: Path, settings: str, checkpoint: str, text: str
) -> None:
    block = f'data {{\n  eval "held" {{ share = 1 %, every = 10 steps, {settings} }}'
    edits = [("data {", block), ("steps = 10\n}", f"steps = 95\n}}\n{checkpoint}")]
    found = check_plan(write_plan(tmp_path, text=TINY, edits=edits)).diagnostics
    assert [(one.code.code, one.primary.text) for one in found] == ([("P755", text)] if text else [])
