"""Whole runs whose ranks die at any instant, or whose files the system refuses, and how they resume."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from planc.cli.commands import run as command
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.torch.checkpoint import ops as checkpointing
from tests.faults.best import best_problem
from tests.faults.inject import Fault, How, Traced, exhaust_descriptors, inject, limit_file_size, slow_down
from tests.faults.outcome import Injection, Row
from tests.faults.ranks import Death, Ending, endings
from tests.launch.processes import free_port
from tests.parity.cases import SAVE_STEP, Case, make_workspace, plan_text
from tests.patience import WAIT_SECONDS, is_within, unhurried

WORLD_SIZE = 2
NUM_STEPS = 6
TIMEOUT_SECONDS = unhurried(5)
_LONGEST_SECONDS = TIMEOUT_SECONDS + 5
STORAGE, COMMUNICATION = 4, 6
SMALL_FILES, NO_DESCRIPTORS, SLOW_DISK = "small files", "no descriptors", "slow disk"
SLOW_SECONDS = 0.5
"""What an fsync of a file takes on a slow disk: as long as many steps."""
_SEED = 20261121


@dataclass(frozen=True, slots=True)
class Stage:
    """A plan that saves after every step and keeps two, and an undisturbed run of it on each world size."""

    plans: dict[int, Path]
    undisturbed: dict[int, Path]
    begun: Path
    """A run on one rank that has stopped after its second step."""
    seconds: float
    """That the run on two ranks took since its ranks had met."""
    mode: str = "sync"
    """The plans' `checkpoint.mode`."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """The loss of each step in the evaluation that keeps the best checkpoint; none without one."""

    @property
    def what(self) -> str:
        """For rows: what is disturbed."""
        return "a run" if self.mode == "sync" else "a run that saves behind training"

    def copy_begun(self, run_folder: Path) -> Path:
        """A copy of the run that has begun, to resume."""
        return Path(shutil.copytree(self.begun, run_folder))


def prepare(folder: Path, *, mode: str = "sync", edits: Sequence[tuple[str, str]] = ()) -> Stage:
    """The stage, set in a folder; `mode` is the plans' `checkpoint.mode`, `edits` are of their text."""
    workspace = make_workspace(folder / "workspace", ("llama",))
    plans, undisturbed, seconds = {}, {}, 0.0
    for size in (1, WORLD_SIZE):
        text = plan_text(Case("DP", mesh={"dp_shard": size} if size > 1 else {}), saves=True)
        text = text.replace(f"save_every = {SAVE_STEP} steps", "save_every = 1 steps")
        text = text.replace("keep_last = 9", f"keep_last = 2\n  mode = {mode}")
        text = text.replace("mesh {", f"mesh {{\n  timeout = {TIMEOUT_SECONDS} s\n", 1)
        for old, new in edits:
            assert old in text, f"nothing to edit: {old}"
            text = text.replace(old, new, 1)
        plans[size] = workspace / f"dp{size}.plan"
        plans[size].write_text(text, encoding="utf-8")
        undisturbed[size] = folder / f"undisturbed-{size}"
        require_done(run(plans[size], undisturbed[size], world_size=size), undisturbed[size])
        seconds = time.time() - (undisturbed[size] / "plan.json").stat().st_mtime
    begun = folder / "begun"
    require_done(run(plans[1], begun, world_size=1, more=("--stop-after", "2")), begun)
    return Stage(plans, undisturbed, begun, seconds, mode, evaluated_losses(undisturbed[WORLD_SIZE]))


def evaluated_losses(run_folder: Path) -> dict[int, float]:
    """The loss of a run's only evaluation, by step."""
    lines = map(json.loads, (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["step"]: line["evaluations"][0]["loss"] for line in lines if "evaluations" in line}


def branched(stage: Stage, folder: Path) -> Stage:
    """The stage of runs on two ranks that start from the run which has begun on one."""
    text = stage.plans[WORLD_SIZE].read_text(encoding="utf-8")
    plan = stage.plans[WORLD_SIZE].with_name("branch.plan")
    plan.write_text(text.replace("checkpoint {", f'checkpoint {{\n  resume = "{stage.begun}"', 1), "utf-8")
    undisturbed = folder / "undisturbed"
    require_done(run(plan, undisturbed, world_size=WORLD_SIZE), undisturbed)
    return replace(stage, plans={WORLD_SIZE: plan}, undisturbed={WORLD_SIZE: undisturbed})


def require_done(found: Sequence[Ending], run_folder: Path) -> None:
    """Nothing was to disturb this run."""
    for ending in found:
        assert ending.code == 0, said(run_folder, rank=ending.rank)


def run(
    plan: Path,
    run_folder: Path,
    *,
    world_size: int,
    fault: Fault | None = None,
    setting: str = "",
    death: Death | None = None,
    more: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[Ending, ...]:
    """How the ranks of `planc run` end. `setting` is SMALL_FILES, NO_DESCRIPTORS, SLOW_DISK or empty."""
    world = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return endings(
        _run_rank,
        world_size,
        plan,
        run_folder,
        fault,
        setting,
        tuple(more),
        group=False,
        environment={**world, **(environment or {})},
        death=death,
        limit_seconds=WAIT_SECONDS,
    )


def _run_rank(
    rank: int,
    world_size: int,
    plan: Path,
    run_folder: Path,
    fault: Fault | None,
    setting: str,
    more: tuple[str, ...],
) -> None:
    _redirect(_log(run_folder, rank))
    if fault is not None:
        inject(run_folder / "checkpoints", rank=rank, fault=fault)
    if setting == SMALL_FILES:
        limit_file_size(20_000)
    if setting == NO_DESCRIPTORS:
        _while_it_saves(exhaust_descriptors)
    if setting == SLOW_DISK:
        slow_down(run_folder / "checkpoints", seconds=SLOW_SECONDS)
    command.main([str(plan), "--run-dir", str(run_folder), *more])


def _while_it_saves(change: Callable[[], Callable[[], None]]) -> None:
    """`change` before each save, and what it returns after it."""
    # Patched: earlier, the run could not even begin, since its modules are files too.
    real = checkpointing.save

    def save(*arguments: Any, **options: Any) -> Path:
        restore = change()
        try:
            return real(*arguments, **options)
        finally:
            restore()

    checkpointing.save = save


def _redirect(path: Path) -> None:
    """Sends this process's output into a file, that of libraries included."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)


def _log(run_folder: Path, rank: int) -> Path:
    return run_folder.with_name(f"{run_folder.name}.rank-{rank}.log")


def traced_run(plan: Path, run_folder: Path) -> tuple[Traced, ...]:
    """Every change that a run of one rank and two steps makes, from the folder above that of all runs."""
    [ending] = endings(_run_traced, 1, plan, run_folder, group=False, environment={"WORLD_SIZE": "1"})
    assert ending.code == 0 and not ending.error, ending
    traced: tuple[Traced, ...] = ending.value
    return traced


class _Left(Exception):
    """Raised in place of the end of a process that has more to tell."""


def _run_traced(rank: int, world_size: int, plan: Path, run_folder: Path) -> tuple[Traced, ...]:
    def leave(code: int) -> NoReturn:
        assert code == 0, code
        raise _Left

    command.leave = leave
    _redirect(Path(os.devnull))
    injector = inject(run_folder.parents[1], rank=rank)
    with contextlib.suppress(_Left):
        command.main([str(plan), "--run-dir", str(run_folder), "--stop-after", "2"])
    return tuple(injector.traced)


def said(run_folder: Path, *, rank: int = 0) -> str:
    """The last of what a rank has printed."""
    return _log(run_folder, rank).read_text(encoding="utf-8", errors="replace")[-2000:]


def exactness_problem(run_folder: Path, undisturbed: Path) -> str:
    """Unless the last checkpoint is bit for bit that of the run that nothing disturbed."""
    found, wanted = (
        read_manifest(step_directory(folder / "checkpoints", step=NUM_STEPS))
        for folder in (run_folder, undisturbed)
    )
    if found.parts != wanted.parts or found.contents != wanted.contents:
        return "the last step's weights or moments differ from an undisturbed run's"
    if found.progress != wanted.progress:
        return f"the run is at {found.progress}, not at {wanted.progress}"
    return ""


def _end_problem(run_folder: Path, undisturbed: Path) -> str:
    names, kept = (sorted(os.listdir(one / "checkpoints")) for one in (run_folder, undisturbed))
    return exactness_problem(run_folder, undisturbed) or ("" if names == kept else f"there are {names}")


def newest_problem(run_folder: Path) -> str:
    """The problem, unless the newest checkpoint verifies or is missing."""
    root = run_folder / "checkpoints"
    steps = committed_steps(root)
    return "; ".join(str(one) for one in verify(step_directory(root, step=steps[-1]))) if steps else ""


def instant_rows(folder: Path, *, stage: Stage, num_instants: int) -> tuple[Row, Row]:
    """One rank, and both, killed at random instants of a run after its ranks have met; then it resumes."""
    chosen = random.Random(_SEED)
    instants = [chosen.uniform(0.0, stage.seconds) for _ in range(num_instants)]
    after = folder / "run" / "plan.json"
    one = tuple(
        _killed(folder, stage, Death((index % WORLD_SIZE,), after, instant))
        for index, instant in enumerate(instants)
    )
    both = tuple(
        _killed(folder, stage, Death(tuple(range(WORLD_SIZE)), after, instant)) for instant in instants
    )
    exact = "the newest step verifies; the run resumes from it and ends bit for bit as an undisturbed one"
    return (
        Row(
            "1",
            f"SIGKILL of one of 2 ranks of {stage.what} at random instants",
            f"the other exits 6 within {_LONGEST_SECONDS} s, its timeout being {TIMEOUT_SECONDS} s; {exact}",
            one,
        ),
        Row("2", f"SIGKILL of all ranks of {stage.what} at random instants", exact, both),
    )


def _killed(folder: Path, stage: Stage, death: Death) -> Injection:
    run_folder = death.after.parent
    first = run(stage.plans[WORLD_SIZE], run_folder, world_size=WORLD_SIZE, death=death)
    if not any(ending.was_killed for ending in first):
        # The run had ended before its instant came.
        _clear(folder)
        return _killed(folder, stage, replace(death, seconds=death.seconds / 2))
    began = time.monotonic()
    problem = next(_killed_problems(run_folder, stage, first), "")
    seconds = time.monotonic() - began
    _clear(folder)
    ranks = " and ".join(str(rank) for rank in death.ranks)
    return Injection(f"rank {ranks}, {death.seconds:.3f} s after the ranks had met", problem, seconds)


def _clear(folder: Path) -> None:
    for path in folder.glob("run*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _killed_problems(run_folder: Path, stage: Stage, first: Sequence[Ending]) -> Iterator[str]:
    died = [ending for ending in first if ending.was_killed]
    for ending in first:
        late = ending.seconds - died[0].seconds
        if ending not in died and (
            ending.code not in (0, COMMUNICATION) or not is_within(late, _LONGEST_SECONDS)
        ):
            text = said(run_folder, rank=ending.rank)
            yield f"rank {ending.rank} ended with {ending.code}, {late:.1f} s later: {text}"
    if problem := newest_problem(run_folder) or best_problem(run_folder / "checkpoints", stage.losses):
        yield problem
    for ending in run(stage.plans[WORLD_SIZE], run_folder, world_size=WORLD_SIZE):
        if ending.code != 0:
            text = said(run_folder, rank=ending.rank)
            yield f"resuming, rank {ending.rank} ended with {ending.code}: {text}"
            return
    try:
        yield from filter(None, [exactness_problem(run_folder, stage.undisturbed[WORLD_SIZE])])
    except CheckpointError as error:
        yield error.message


REFUSALS: dict[str, tuple[Fault | None, str]] = {
    "shard on /dev/full": (Fault(0, 2, How.FULL), ""),
    "plan on /dev/full": (Fault(0, 5, How.FULL), ""),
    "manifest on /dev/full": (Fault(0, 8, How.FULL), ""),
    "RLIMIT_FSIZE of 20,000 bytes": (None, SMALL_FILES),
    "no free descriptor (EMFILE)": (None, NO_DESCRIPTORS),
}
"""What the system refuses at a run's first save: a fault of its files, or a limit on the process."""


REFUSALS_BEHIND = tuple(name for name, (_, setting) in REFUSALS.items() if setting != NO_DESCRIPTORS)
"""Those that can be put on a save alone while training continues."""


def refused_row(folder: Path, *, stage: Stage, names: Iterable[str] = tuple(REFUSALS)) -> Row:
    """Runs of one rank that resume, and whose next save the system refuses."""
    injections = []
    for name in names:
        fault, setting = REFUSALS[name]
        run_folder = folder / "refused-run"
        plan = stage.plans[1]
        stage.copy_begun(run_folder)
        began = time.monotonic()
        [ending] = run(plan, run_folder, world_size=1, fault=fault, setting=setting)
        problem = next(_refused_problems(run_folder, ending, needs_descriptors=setting == NO_DESCRIPTORS), "")
        seconds = time.monotonic() - began
        if not problem:
            [again] = run(plan, run_folder, world_size=1)
            problem = said(run_folder) if again.code else _end_problem(run_folder, stage.undisturbed[1])
        injections.append(Injection(name, problem, seconds))
        shutil.rmtree(run_folder)
    return Row(
        "5, 6",
        f"the save of {stage.what} refused by {'; '.join(names)}",
        "exit 4, in status.json too; the step before verifies, the partial one is gone, or "
        "is removed by the next save where no descriptor is free; resuming is exact",
        tuple(injections),
    )


def _refused_problems(run_folder: Path, ending: Ending, *, needs_descriptors: bool) -> Iterator[str]:
    if ending.code != STORAGE:
        yield f"exit {ending.code}: {said(run_folder)}"
        return
    status = json.loads((run_folder / "status.json").read_text(encoding="utf-8"))
    if status["exit_code"] != STORAGE:
        yield f"status.json has {status['exit_code']}"
    if problem := newest_problem(run_folder):
        yield problem
    names = set(os.listdir(run_folder / "checkpoints"))
    # To clear a folder takes a descriptor, too: the next save does it.
    if names - ({"step-3.tmp"} if needs_descriptors else set()) != {"step-1", "step-2"}:
        yield f"there are {', '.join(names)}"
