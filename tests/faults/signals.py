"""Runs that are asked to stop: signals as an op begins, on some ranks, and how such a run resumes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planc.cli.commands import run as command
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.backend import TorchBackend
from tests.faults.outcome import Injection, Row
from tests.faults.ranks import Ending, endings
from tests.faults.runs import _log, _redirect, exactness_problem, require_done, said
from tests.launch.processes import free_port
from tests.parity.cases import NUM_STEPS, Case, make_workspace, plan_text
from tests.patience import WAIT_SECONDS, is_within

PREEMPTED = 75
LONGEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Told:
    """Signals that a rank sends itself, one after the other, as an op of a step begins there first."""

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    op: str
    step: int = 2

    def __str__(self) -> str:
        return f"{' '.join(self.names)} to {self.ranks} in {self.op} of step {self.step}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Plans that save at the end and resume, by name, and undisturbed runs of them, by world size."""

    plans: dict[str, Path]
    undisturbed: dict[int, Path]


def prepare(folder: Path) -> Stage:
    """The stage, set in a folder."""
    workspace = make_workspace(folder / "workspace", ("llama",))
    evaluation = '\n  eval "held_out" { source = text("corpus.txt")\n every = 1 steps\n sequences = 2 }'
    meshes = {"one": {}, "dp": {"dp_shard": 2}, "tp": {"tp": 2}}
    texts = {}
    for name, mesh in meshes.items():
        text = plan_text(Case(name, mesh=mesh), saves=True).replace("data {", f"data {{{evaluation}", 1)
        texts[name] = text.replace("save_every = 3 steps", "save_last = true")
    texts["unsaved"] = plan_text(Case("unsaved"))
    plans = {name: workspace / f"{name}.plan" for name in texts}
    for name, path in plans.items():
        path.write_text(texts[name], encoding="utf-8")
    undisturbed = {}
    for name, size in (("one", 1), ("dp", 2)):
        undisturbed[size] = folder / f"undisturbed-{size}"
        require_done(run(plans[name], undisturbed[size], world_size=size), undisturbed[size])
    return Stage(plans, undisturbed)


def run(plan: Path, run_folder: Path, *, world_size: int, told: Told | None = None) -> tuple[Ending, ...]:
    """How the ranks of `planc run` end."""
    world = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return endings(
        _run_rank,
        world_size,
        plan,
        run_folder,
        told,
        group=False,
        environment={**world, "LOCAL_WORLD_SIZE": str(world_size)},
        limit_seconds=WAIT_SECONDS,
    )


def _run_rank(rank: int, world_size: int, plan: Path, run_folder: Path, told: Told | None) -> None:
    _redirect(_log(run_folder, rank))
    if told is not None and rank in told.ranks:
        _tell(told)
    command.main([str(plan), "--run-dir", str(run_folder)])


def _tell(told: Told) -> None:
    execute = TorchBackend.execute
    waiting = list(told.names)

    def execute_told(self: Any, op: Op, position: Position) -> None:
        if (op.name, position.step) == (told.op, told.step):
            while waiting:
                os.kill(os.getpid(), getattr(signal, waiting.pop(0)))
        execute(self, op, position)

    TorchBackend.execute = execute_told  # type: ignore[method-assign]


def status(run_folder: Path) -> dict[str, Any]:
    """What status.json says."""
    found: dict[str, Any] = json.loads((run_folder / "status.json").read_text(encoding="utf-8"))
    return found


def preemption_problems(run_folder: Path, found: Sequence[Ending], *, steps: Sequence[int]) -> Iterator[str]:
    """The problem with the end of a run that was asked to stop, unless it saved one of these steps."""
    for ending in found:
        if ending.code != PREEMPTED or not is_within(ending.seconds, LONGEST_SECONDS):
            text = said(run_folder, rank=ending.rank)
            yield f"rank {ending.rank} ended with {ending.code} after {ending.seconds:.1f} s: {text}"
    told = status(run_folder)
    if (told["state"], told["exit_code"]) != ("preempted", PREEMPTED) or told["step"] not in steps:
        yield f"status.json has {told}"
    elif told["saved_step"] != told["step"]:
        yield f"step {told['step']} is not saved: {told}"


def told_row(folder: Path, *, stage: Stage) -> Row:
    """Every signal in every phase of a run of two ranks, to one rank and to both."""
    injections = []
    phases = (("data.open", 0), ("forward", 2), ("evaluate", 2), ("checkpoint.save", NUM_STEPS))
    cases = itertools.product(("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"), phases, ((1,), (0, 1)))
    for name, (op, step), ranks in cases:
        told = Told((name,), ranks, op, step)
        run_folder = folder / "told-run"
        found = run(stage.plans["dp"], run_folder, world_size=2, told=told)
        seconds = max(ending.seconds for ending in found)
        injections.append(Injection(str(told), _told_problem(run_folder, found, told, stage), seconds))
        shutil.rmtree(run_folder)
    return Row(
        "14, 15",
        "SIGTERM, SIGINT, SIGHUP, SIGUSR1 to one rank and to both: at the start, in a step, in an "
        "evaluation, in the last save",
        "exit 75 on every rank with the same step saved, nothing before the first step, 0 after the last; "
        "resuming is exact",
        tuple(injections),
    )


def _told_problem(run_folder: Path, found: Sequence[Ending], told: Told, stage: Stage) -> str:
    wanted = {0: {PREEMPTED}, NUM_STEPS: {0}}.get(told.step)
    if wanted is not None:
        codes = {ending.code for ending in found}
        problem = "" if codes == wanted else f"ranks ended with {codes}: {said(run_folder)}"
    else:
        problem = next(preemption_problems(run_folder, found, steps=(2, 3)), "")
    if problem:
        return problem
    require_done(run(stage.plans["dp"], run_folder, world_size=2), run_folder)
    return exactness_problem(run_folder, stage.undisturbed[2])
