"""Numbers that go wrong, and ranks that are slow, starved, absent or out of step, in runs of two ranks."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from planc.runtime.errors import ExitCode
from tests.dist.faulty_steps import WEIGHT, Fault, Told, run_faulty
from tests.faults.outcome import Injection, Row, first_problem
from tests.launch import faulty
from tests.launch.processes import Outcome, free_port, start
from tests.parity.cases import NUM_STEPS, Case, make_workspace, plan_text
from tests.patience import is_within, unhurried

TIMEOUT_SECONDS = unhurried(4)
_IN_TIME_SECONDS = 60
_DP2 = Case("DP2", "accumulate 2", {"dp_shard": 2}, micro_batch=2)
_REPLICAS = Case("DP2", "replicas", {"dp_replicate": 2})
_SPIKE = "window = 5 steps"


def number_rows(folder: Path) -> Iterator[Row]:
    """Rows 10, 11 and 19: NaN, infinity, spikes and flipped bits on one of two ranks."""
    workspace = make_workspace(folder / "workspace")
    yield Row(
        "10",
        "NaN or infinity in the loss or a weight of one of 2 ranks, in the first, a middle and the last step",
        "both exit 5 at that step; weights and optimizer are those before; rank and sequences are named",
        tuple(_nonfinite(workspace)),
    )
    yield Row(
        "11",
        "a loss 50 times as high on one of 2 ranks; NaN where the plan skips it",
        "stop: as above; skip: both leave the step out, and continue with the next batch",
        tuple(_spikes(workspace)),
    )
    yield Row(
        "19",
        "one bit of a weight flipped on one of 2 replicas, after every step",
        "both exit 5 at the next comparison; parameter and ranks are named",
        tuple(_flips(workspace)),
    )


def _nonfinite(workspace: Path) -> Iterator[Injection]:
    for step in (1, 3, NUM_STEPS):
        for value in (math.nan, math.inf):
            for op, kind in (("loss", "loss"), ("batch.next", "weight"), ("grads.clip", "step loss")):
                began = time.monotonic()
                told = run_faulty(workspace, _DP2, Fault(op, (step,), kind, value))
                problem = first_problem(_stop_problem(one, step=step, kind=kind) for one in told)
                if (
                    not problem
                    and kind == "loss"
                    and "rank 1, micro-batch 1 (sequences" not in told[0].message
                ):
                    problem = f"names no sequences: {told[0].message}"
                if not problem and kind == "weight" and WEIGHT not in told[0].message:
                    problem = f"names no weight: {told[0].message}"
                yield Injection(f"{kind} {value} at step {step}", problem, time.monotonic() - began)


def _stop_problem(told: Told, *, step: int, kind: str) -> str:
    if told.code is not ExitCode.NUMERICS:
        return f"ended with {told.code}, not with 5"
    if f"at step {step}" not in told.message:
        return f"another step is named: {told.message}"
    # The spoiled weight itself was changed, by the fault.
    is_as_before = kind == "weight" or told.states[-1] == told.states[step - 1]
    return "" if is_as_before else "weights or optimizer have changed"


def _spikes(workspace: Path) -> Iterator[Injection]:
    high = Fault("loss", (NUM_STEPS,), "loss", 50.0)
    for action in ("stop", "skip"):
        began = time.monotonic()
        told = run_faulty(workspace, _DP2, high, f"guard.loss_spike={action}({_SPIKE})")
        wanted = ExitCode.NUMERICS if action == "stop" else None
        problem = first_problem(_left_out_problem(one, code=wanted, step=NUM_STEPS) for one in told)
        yield Injection(f"spike, {action}", problem, time.monotonic() - began)
    for step in range(1, NUM_STEPS + 1):
        began = time.monotonic()
        told = run_faulty(workspace, _DP2, Fault("loss", (step,), "loss"), "guard.nonfinite=skip")
        problem = first_problem(_left_out_problem(one, code=None, step=step) for one in told)
        yield Injection(f"NaN at step {step}, skip", problem, time.monotonic() - began)


def _left_out_problem(told: Told, *, code: ExitCode | None, step: int) -> str:
    if told.code is not code:
        return f"ended with {told.code}, not with {code}"
    after = told.states[step] if step < NUM_STEPS else told.states[-1]
    return "" if after == told.states[step - 1] else f"step {step} has changed the weights"


def _flips(workspace: Path) -> Iterator[Injection]:
    for step in range(1, NUM_STEPS + 1):
        began = time.monotonic()
        fault = Fault("optimizer.step", (step,), "bit")
        told = run_faulty(workspace, _REPLICAS, fault, "guard.replicas_every=1 step")
        wanted = f"{WEIGHT} differs between rank 0 and rank 1"
        codes = [one.code for one in told]
        problem = "" if codes == [ExitCode.NUMERICS] * 2 else f"ended with {codes}"
        if not problem and (wanted not in told[0].message or f"after step {step} " not in told[0].message):
            problem = f"names something else: {told[0].message}"
        yield Injection(f"after step {step}", problem, time.monotonic() - began)


def rank_rows(folder: Path) -> Iterator[Row]:
    """Rows 12, 13, 17, 18, 24 and 25: what becomes of one of two processes."""
    workspace = make_workspace(folder / "workspace")
    plan = workspace / "two.plan"
    text = plan_text(Case("DP2", "", {"dp_shard": 2}), saves=False)
    plan.write_text(text.replace("mesh {", f"mesh {{\n  timeout = {TIMEOUT_SECONDS} s", 1), encoding="utf-8")
    for number, fault, promise, faults, codes, wanted in _PROCESS_ROWS:
        injections = []
        for index, one in enumerate(faults):
            began = time.monotonic()
            try:
                outcomes = faulty.run_faulty(plan, folder / f"{number}-{index}", fault=one)
                problem = _outcome_problem(outcomes, codes=codes, wanted=wanted)
            except subprocess.TimeoutExpired as expired:
                problem = f"a rank did not end within {expired.timeout:.0f} s"
            injections.append(Injection(one, problem, time.monotonic() - began))
        yield Row(number, fault, promise, tuple(injections))
    yield Row(
        "18",
        "200 ms of sleep a step on one of 2 ranks",
        "named within 20 steps, in the log and in metrics.jsonl; the run ends well",
        tuple(_drags(plan, folder)),
    )
    yield Row(
        "24",
        "a rank that does not come; a host that nobody knows",
        f"exit 6 within {_IN_TIME_SECONDS} s, naming it",
        tuple(_absences(plan, folder)),
    )


_PROCESS_ROWS = (
    (
        "13",
        "one of 2 ranks leaves out a collective",
        "exit 6, or gloo's own end where sizes differ; the positions of both are reported",
        ("skip 1 2 grads.clip", "skip 1 3 metrics.reduce"),
        ((6, 6), (-6, 6)),
        r"help: rank [01] .*, in op `[a-z.]+` at step \d",
    ),
    (
        "17",
        "one of 2 ranks cannot read its batch",
        "exit 4, naming its sequences; the other exits 6, naming the rank",
        ("garble 1 2 batch.next",),
        ((6, 4),),
        r"cannot read the batch of step \d on rank 1 \(sequences [\d, ]+\)",
    ),
    (
        "25",
        "RLIMIT_AS on one of 2 ranks",
        "exit 8, naming op and allocation; the other exits 6, naming the rank",
        ("starve 1 2 forward", "starve 1 3 backward"),
        ((6, 8),),
        r"out of memory in op `[a-z]+` \(step \d, rank 1 .*could not allocate 268435456 bytes",
    ),
)


def _outcome_problem(outcomes: list[Outcome], *, codes: tuple[tuple[int, ...], ...], wanted: str) -> str:
    found = tuple(outcome.code for outcome in outcomes)
    if found not in codes:
        return f"ended with {found}"
    said = "".join(outcome.stderr for outcome in outcomes)
    return "" if re.search(wanted, said) else f"says something else: {said[-300:]}"


def _drags(plan: Path, folder: Path) -> Iterator[Injection]:
    for op in ("batch.next", "forward", "optimizer.step"):
        began = time.monotonic()
        run_folder = folder / f"drag-{op}"
        steps = ("--set", "train.steps=20")
        outcomes = faulty.run_faulty(plan, run_folder, fault=f"drag 1 1 {op}", more=steps)
        codes = [outcome.code for outcome in outcomes]
        problem = "" if codes == [0, 0] else f"ended with {codes}"
        if not problem and "rank 1 straggles" not in outcomes[0].stdout:
            problem = "not named in the log"
        lines = (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        if not problem and json.loads(lines[-1]).get("stragglers") != [1]:
            problem = "not named in metrics.jsonl"
        yield Injection(f"in {op}", problem, time.monotonic() - began)


def _absences(plan: Path, folder: Path) -> Iterator[Injection]:
    for name, address, wanted in (
        ("absent", "127.0.0.1", "rank 1 did not join"),
        ("unknown host", "nobody.invalid", "MASTER_ADDR = nobody.invalid does not resolve"),
    ):
        world = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": str(free_port())}
        command = ("-m", "planc.run", str(plan), "--run-dir", str(folder / name.replace(" ", "-")))
        outcome = start(faulty.PYTHON, *command, environment={**world, "MASTER_ADDR": address})
        problem = "" if outcome.code == ExitCode.COMMUNICATION else f"ended with {outcome.code}"
        if not problem and wanted not in outcome.stderr:
            problem = f"says something else: {outcome.stderr}"
        if not problem and not is_within(outcome.seconds, _IN_TIME_SECONDS + 10):
            problem = f"took {outcome.seconds:.0f} s"
        yield Injection(name, problem, outcome.seconds)
