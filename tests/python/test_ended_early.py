"""A run that an evaluation ends, as its files, its result and other commands have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planc
from planc.cli.main import main

EVALUATION = """data {
  eval "held" {
    source = text("*.txt")
    every = 1 steps
    sequences = 2
    patience = 2
    min_delta = 50.0
    keep_best = 1
  }
"""


def test_a_run_that_ended_early_says_why_everywhere(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = plan.read_text().replace("data {\n", EVALUATION, 1).replace("save_every = 100", "save_every = 1")
    plan.write_text(text.replace("save_last = true", "keep_last = 1"), encoding="utf-8")
    folder = plan.parent / "runs" / "one"
    result = planc.run(plan, run_dir=folder)
    assert (result.state, result.last_step) == ("done", 3)
    reason = "held has not improved on {:.4f} at step 1 by more than 50 in 2 evaluations"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["evaluations"][0]["loss"] for line in lines}
    reason = reason.format(losses[1])
    assert [line.get("early_stop") for line in lines] == [None, None, reason]
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["step"], status["early_stop"]) == ("done", 3, reason)
    assert f"done early, after step 3 of 6: {reason}" in capsys.readouterr().out
    assert main(["runs", str(folder.parent)]) == 0
    assert "done (early)" in capsys.readouterr().out
    best = min(losses, key=lambda step: losses[step])
    assert main(["checkpoint", "ls", str(folder)]) == 0
    listed = capsys.readouterr().out.splitlines()[1:]
    assert [f"loss {losses[best]:.4f} (best)" in line for line in listed] == [
        f"step-{best} " in line for line in listed
    ]
    export = str(plan.parent / "best")
    assert main(["checkpoint", "export", str(folder), "--hf", export, "--best"]) == 0
    assert f"from {folder}/checkpoints/step-{best}" in capsys.readouterr().err
    assert main(["checkpoint", "export", str(folder), "--hf", export, "--best", "other"]) == 2
    assert "pass --best NAME with `held`" in capsys.readouterr().err
    assert planc.run(plan, run_dir=folder, quiet=True).last_step == 3, "resumed, it stays at its end"
