"""Runs that start from another run's checkpoint: `checkpoint { resume = "path" }`, on one rank."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

import planc
from planc.cli.main import main
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.verify import read_manifest

EVERY = "checkpoint.save_every=2 steps"


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def branching(path: Path) -> str:
    return f'checkpoint.resume="{path}"'


def test_a_branch_is_the_run_that_it_left_and_records_where_it_did(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    first, branch = runs / "first", runs / "branch"
    planc.run(plan, run_dir=first, overrides=[EVERY], quiet=True)
    before, source = digests(first), first / "checkpoints" / "step-2"
    overrides = [EVERY, branching(source)]
    planc.run(
        plan, run_dir=branch, overrides=[*overrides, "checkpoint.keep_last=1"], stop_after=4, quiet=True
    )
    # The plan now names the run: its own checkpoint comes first, and the source is gone.
    moved = first.rename(tmp_path / "moved")
    planc.run(plan, run_dir=branch, overrides=[EVERY, branching(first)], quiet=True)
    moved.rename(first)
    assert digests(first) == before
    saved, whole = (read_manifest(step_directory(one / "checkpoints", step=6)) for one in (branch, first))
    assert (saved.parts, saved.contents, saved.progress) == (whole.parts, whole.contents, whole.progress)
    assert committed_steps(branch / "checkpoints") == (4, 6)
    lines = [json.loads(line)["step"] for line in (branch / "metrics.jsonl").read_text().splitlines()]
    assert lines == [3, 4, 5, 6]
    digest = hashlib.sha256((source / "manifest.json").read_bytes()).hexdigest()
    origin = {"path": str(source), "step": 2, "plan_hash": whole.plan_hash, "digest": digest}
    status = json.loads((branch / "status.json").read_text())
    assert (status["state"], status["branched_from"]) == ("done", origin)
    assert saved.origin is not None and saved.origin.model_dump() == origin and whole.origin is None
    assert main(["checkpoint", "ls", str(branch)]) == 0
    assert f"committed, branched from {source}" in capsys.readouterr().out
    assert main(["runs", str(runs)]) == 0
    header, row, other = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[5:7] == ["branched", "from"] and (row[5], other[5]) == (str(source), "-")
    assert main(["report", str(branch), "-o", str(tmp_path / "page.html")]) == 0
    assert f"path {source}, step 2" in (tmp_path / "page.html").read_text()


def test_a_branch_from_what_is_no_source_ends_before_its_first_step(plan: Path, tmp_path: Path) -> None:
    first, branch = tmp_path / "first", tmp_path / "branch"
    planc.run(plan, run_dir=first, overrides=[EVERY], stop_after=4, quiet=True)
    empty = tmp_path / "empty"
    empty.mkdir()

    def refused(path: Path, *settings: str, run_dir: Path = branch) -> planc.RunError:
        with pytest.raises(planc.RunError) as caught:
            planc.run(plan, run_dir=run_dir, overrides=[EVERY, branching(path), *settings], quiet=True)
        assert committed_steps(branch / "checkpoints") == () and not (branch / "metrics.jsonl").exists()
        return caught.value

    for path in (empty, tmp_path / "words.txt", first / "checkpoints", tmp_path / "absent"):
        error = refused(path)
        assert f"`{path}` is not a checkpoint, and not the directory of a run that has one" in error.message
        assert error.span is not None and error.code == 2
    assert "checkpoints has step-2, step-4" in refused(first / "checkpoints" / "step-3").message
    own = refused(first / "checkpoints" / "step-2", run_dir=first)
    assert "is in this run's own directory" in own.message and own.span is not None
    changed = refused(first, "optimizer.kind=adamw(lr = 2e-3)")
    assert "optimizer lr 0.001 -> 0.002" in changed.message
    assert changed.help is not None and changed.help.endswith("another --run-dir and `resume = latest`")
    damaged = Path(shutil.copytree(first, tmp_path / "damaged")) / "checkpoints" / "step-4"
    shard = damaged / "rank-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    error = refused(tmp_path / "damaged")
    assert error.code == 7 and error.span is not None and "is damaged" in error.message
    assert error.help is not None and "another checkpoint in `resume`" in error.help
    allowed = [EVERY, branching(first), "optimizer.kind=adamw(lr = 2e-3)"]
    result = planc.run(plan, run_dir=branch, overrides=allowed, allow_change=["optimizer lr"], quiet=True)
    assert [step for step, _ in result.losses] == [5, 6]
