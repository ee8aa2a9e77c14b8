"""`planc diff CHECKPOINT PLAN` says what the run then does: real runs, of every kind of change."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planc.cli.main import main
from planc.diff.difference import State
from tests.forked import run_forked
from tests.plans import TINY, write_plan

ROOT = Path(__file__).parents[2]
EDITS = (
    ("size: int = 2", "size: int = 1"),
    ("tp = 2", "tp = 1"),
    ("tensor_parallel on tp {\n  auto\n}\n\n", ""),
    ("steps = 10", "steps = 4\n  tokens_per_step = 128"),
)
CHECKPOINT = "\ncheckpoint {\n  save_every = 1 steps\n}\n"


@dataclass(frozen=True, slots=True)
class Case:
    """A change after two of four steps, and what a run then does; `allow` lifts a refusal."""

    settings: tuple[str, ...]
    state: State
    reason: str = ""
    allow: tuple[str, ...] = ()
    plan: str = "x.plan"


NOT_RESUMING = ("no resume", "no block")
CASES = {
    "nothing": Case((), State.RESUMES),
    "logging": Case(("train.log_every=7 steps",), State.RESUMES),
    "micro batch": Case(("data.micro_batch=2",), State.RESUMES),
    "recomputation": Case(("data.prefetch=0",), State.RESUMES),
    "steps": Case(("train.steps=2",), State.NOTHING_TO_TRAIN, "the checkpoint is of step 2"),
    "clipping": Case(
        ("optimizer.clip_grad_norm=0.5",),
        State.REFUSED,
        "trains differently from the checkpoint's plan: optimizer.clip_grad_norm",
        ("optimizer.clip_grad_norm",),
    ),
    "rate": Case(
        ("optimizer.kind=adamw(lr = 2e-3)",), State.REFUSED, "optimizer lr 0.001 -> 0.002", ("optimizer lr",)
    ),
    "schedule": Case(
        ("optimizer.schedule=linear(warmup = 1 steps)",),
        State.REFUSED,
        "schedule constant -> linear",
        ("schedule", "schedule warmup steps", "schedule min_factor", "schedule ends at step"),
    ),
    "tokens": Case(("train.tokens_per_step=256",), State.REFUSED, "tokens/step 128 -> 256", ("tokens/step",)),
    "optimizer": Case(("optimizer.kind=sgd(lr = 1e-3)",), State.REFUSED, "one optimizer keeps"),
    "dtype": Case(("model.dtype=bfloat16",), State.REFUSED, "parameters are float32 in one"),
    "seed": Case(("model.seed=5",), State.REFUSED, "model.seed: 0 -> 5"),
    "model": Case(('model.hf="models/tiny-llama-tied"',), State.REFUSED, "does not fit this run"),
    "shuffling": Case(("data.shuffle_seed=7",), State.REFUSED, "data.shuffle_seed 0 -> 7"),
    "length": Case(("data.sequence_length=32",), State.REFUSED, "data.sequence_length 64 -> 32"),
    "packing": Case(("data.packing=isolate",), State.REFUSED, "data.packing"),
    "source": Case(('data.source=text("data/a.txt")',), State.REFUSED, "data.source"),
    "no resume": Case(("checkpoint.resume=none",), State.REFUSED, "the plan does not resume"),
    "no block": Case((), State.REFUSED, "no `checkpoint` block", plan="unsaved.plan"),
    "both": Case(
        ("data.shuffle_seed=7", "optimizer.clip_grad_norm=0.5"), State.REFUSED, "trained on other data"
    ),
}


def set_flags(case: Case) -> list[str]:
    return [word for setting in case.settings for word in ("--set", setting)]


def run_all(folder: Path, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    listed = folder / "cases.json"
    listed.write_text(json.dumps(cases), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = run_forked("tests.diff.resumed_runs", [str(listed)], environment=environment)
    assert done.code == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verdict")
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("It was the best of times, it was the worst of times. " * 80)
    write_plan(folder, text=TINY + CHECKPOINT, edits=EDITS)
    write_plan(folder, name="unsaved.plan", text=TINY, edits=EDITS)
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, dict[str, Any]]:
    """How every run ended: as it is, with the leave that its verdict names, and without any verdict."""
    plan, base = str(folder / "x.plan"), str(folder / "base")
    cases: dict[str, dict[str, Any]] = {
        "base": {"plan": plan, "run": base, "arguments": ["--stop-after", "2"]}
    }
    for name, case in CASES.items():
        shared = {"plan": str(folder / case.plan), "from": base}
        stop = [] if case.state is State.NOTHING_TO_TRAIN else ["--stop-after", "3"]
        arguments = [*set_flags(case), *stop]
        cases[name] = {**shared, "run": str(folder / name), "arguments": arguments}
        if case.allow:
            leave = [word for one in case.allow for word in ("--allow-change", one)]
            cases[f"{name}, allowed"] = {
                **shared,
                "run": str(folder / f"{name}, allowed"),
                "arguments": [*arguments, *leave],
            }
        elif case.state is State.REFUSED and name not in NOT_RESUMING:
            cases[f"{name}, unjudged"] = {
                **shared,
                "run": str(folder / f"{name}, unjudged"),
                "arguments": arguments,
                "without_verdict": True,
            }
    found = run_all(folder, cases)
    assert found["base"]["code"] == 0, found["base"]["said"]
    return found


def verdict(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    checkpoint = str(folder / "base" / "checkpoints" / "step-2")
    command = ["diff", checkpoint, str(folder / case.plan), *set_flags(case), "--output-format", "json"]
    main(command)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["resume"]
    return found


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", CASES)
def test_a_run_does_what_the_difference_says(
    name: str, runs: dict[str, dict[str, Any]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, ran = CASES[name], runs[name]
    found = verdict(folder, case, capsys)
    assert (found["state"], tuple(found["allow"])) == (case.state, case.allow)
    assert case.reason in found["reason"]
    match case.state:
        case State.RESUMES:
            assert ran["code"] == 0 and "resumed from" in ran["said"], ran["said"]
            assert all(note in ran["said"] for note in found["notes"])
        case State.NOTHING_TO_TRAIN:
            assert ran["code"] == 0 and "nothing to train" in ran["said"], ran["said"]
        case State.REFUSED:
            assert ran["code"] != 0
            assert found["reason"] in ran["said"] and found["help"] in ran["said"], ran["said"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.allow])
def test_the_leave_that_is_named_lifts_the_refusal(name: str, runs: dict[str, dict[str, Any]]) -> None:
    ran = runs[f"{name}, allowed"]
    assert ran["code"] == 0 and "resumed from" in ran["said"], ran["said"]


UNJUDGED = [
    name
    for name, case in CASES.items()
    if case.state is State.REFUSED and not case.allow and name not in NOT_RESUMING
]


@pytest.mark.parametrize("name", UNJUDGED)
def test_what_no_leave_lifts_does_not_fit_the_checkpoint(name: str, runs: dict[str, dict[str, Any]]) -> None:
    """The verdict refuses no more than what the checkpoint itself would be refused for."""
    ran = runs[f"{name}, unjudged"]
    assert ran["code"] != 0 and "resumed from" not in ran["said"], ran["said"]
    assert "the checkpoint" in ran["said"], ran["said"]


def test_the_verdict_is_the_first_thing_that_a_person_reads(
    runs: dict[str, dict[str, Any]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, base = str(folder / "x.plan"), folder / "base"
    main(["diff", str(base / "checkpoints" / "step-2"), plan, "--set", "optimizer.clip_grad_norm=0.5"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("resume: refused: this plan trains differently")
    assert (
        "pass --allow-change optimizer.clip_grad_norm, or start a new run with another --run-dir" in lines[2]
    )
    main(["diff", str(base), plan])
    assert capsys.readouterr().out.splitlines()[1] == "resume: continues: after step 2"
    main(["diff", plan, plan, "--set", "optimizer.clip_grad_norm=0.5"])
    assert capsys.readouterr().out.splitlines()[1:3] == lines[1:3]


def test_a_plan_with_errors_is_refused(
    runs: dict[str, dict[str, Any]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = verdict(folder, Case(("data.micro_batch=3",), State.REFUSED), capsys)
    assert (found["state"], found["reason"]) == ("refused", "the plan has errors")
