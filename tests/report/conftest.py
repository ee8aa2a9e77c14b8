"""Pages that several tests read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.plans import QUICKSTART

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Runs a command that writes a page, and returns the page's text."""

    def run(*arguments: str, code: int = 0) -> str:
        output = tmp_path / "page.html"
        assert main([*arguments, "-o", str(output)]) == code
        return output.read_text(encoding="utf-8")

    return run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def make_run(folder: Path) -> Path:
    """A run directory of the quickstart's plan: its files as a run writes them, with values of our own."""
    folder.mkdir()
    assert main(["compile", str(QUICKSTART), "-o", str(folder / "plan.json"), "-q"]) == 0
    lines = []
    for step in range(1, 61):
        values = {
            "step": step,
            "loss": 5.0 / step,
            "grad_norm": 1.0 + 1.0 / step,
            "learning_rate": 1e-3,
            "tokens": 4096,
            "labels": 4096,
            "tokens_per_second": 1000.0 + step,
            "memory_bytes": 2**20 * (100 + step),
            "memory_kind": "process",
        }
        if step % 30 == 0:
            values["evaluations"] = [{"label": "held_out", "loss": 4.0 / step, "labels": 512}]
        lines.append(json.dumps(values))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "status.json").write_text(json.dumps({"state": "done", "exit_code": 0, "step": 60}))
    return folder
