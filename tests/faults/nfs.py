"""Runs on a file system with the answers of NFS: of everything that a run does to files, one call goes wrong.

`nfs.c` stands between a process and its C library. It has to be there when the process starts, so a campaign
runs in a process of its own, whose ranks inherit it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import committed_steps
from tests.faults import runs
from tests.faults.folder_damage import SETTINGS
from tests.faults.outcome import Injection, Row, first_problem

SOURCE = Path(__file__).with_suffix(".c")
ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc")
MODES = ("stale", "lost")
_STATE = r" [^ ]*/checkpoints(/step-[0-9]+(\.tmp(/.*)?)?)?$"
"""Calls that belong to training state: a step and its temporary directory, and the directory of them all."""
_DELETION = r"^(unlink|rmdir) |\.deleted|\.nfs"
_START = r"/\.lock$|^(mkdir|write-open|fsync) [^ ]*/run$|^write [^ ]*/#|/\.shared-"
"""What a run can't begin without: its directory, in which it tries whether it may write, and its lock."""
_LIMIT_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Task:
    """What goes wrong in a run that resumes a stage's begun one: `variables` are those of `nfs.c`."""

    name: str
    world_size: int
    variables: Mapping[str, str]
    may_refuse: bool = False
    """Whether the call belongs to training state, so the run may end with a storage error."""


def compiled(folder: Path) -> Path:
    """The library, made by the system's C compiler."""
    assert COMPILER is not None, "its tests are skipped without a compiler"
    library = folder / "nfs.so"
    command = [COMPILER, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


def campaign(folder: Path, *, stage: runs.Stage, every: int = 1, only: Sequence[str] = ()) -> tuple[Row, ...]:
    """The rows of the matrix; of the single calls, each `every`-th. `only` leaves out other kinds."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "LD_PRELOAD": str(compiled(folder))}
    request = {**asdict(stage), "folder": folder, "every": every, "only": [*only]}
    command = [sys.executable, "-m", "tests.faults.nfs", json.dumps(request, default=str)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return tuple(
        Row(**{**row, "injections": tuple(Injection(*one) for one in row["injections"])}) for row in found
    )


def _main(text: str) -> None:
    request: dict[str, Any] = json.loads(text)
    folder, every, only = Path(request.pop("folder")), request.pop("every"), request.pop("only")
    for name in ("plans", "undisturbed"):
        request[name] = {int(size): Path(path) for size, path in request[name].items()}
    stage = runs.Stage(**{**request, "begun": Path(request["begun"])})
    rows = []
    for kind, make in KINDS.items():
        if not only or kind in only:
            rows.append(make(folder, stage, every))
    data = [
        {**asdict(row), "injections": [[one.name, one.problem, one.seconds] for one in row.injections]}
        for row in rows
    ]
    print(json.dumps(data))


def _calls(folder: Path, stage: runs.Stage, *, mode: str) -> tuple[str, ...]:
    """Every call of an undisturbed run that `mode` could answer wrongly, as `KIND PATH`."""
    log = folder / "calls"
    problem = _problem(folder, stage, Task("none", 1, {"MODE": mode, "AT": "-1", "LOG": str(log)}))
    assert problem == "", problem
    calls = tuple(log.read_text(encoding="utf-8").splitlines())
    log.unlink()
    return calls


def _single(folder: Path, stage: runs.Stage, every: int) -> Row:
    """One call of a run on one rank is answered wrongly, once."""
    injections = []
    for mode in MODES:
        for number, call in [*enumerate(_calls(folder, stage, mode=mode), 1)][::every]:
            place = call.replace(str(folder), "")
            is_state = re.search(_STATE, call) is not None and re.search(_DELETION, call) is None
            # A rename, or a new directory, whose answer is lost is there: a save sees it.
            may_refuse = is_state and mode == "stale"
            task = Task(f"{mode}, call {number}, {place}", 1, {"MODE": mode, "AT": str(number)}, may_refuse)
            injections.append(_injection(folder, stage, task))
    return Row(
        "102",
        "NFS: one call of a run is answered with ESTALE, or done though its answer was lost and its "
        "repetition fails (ENOENT, EEXIST)",
        "the run ends as an undisturbed one; if the call belongs to a save, it may end with exit 4 instead, "
        "the step before is whole, and the run resumes exactly",
        tuple(injections),
    )


def _refused(folder: Path, stage: runs.Stage, every: int) -> Row:
    """Every call that is not of training state fails, throughout, on one rank and on two."""
    spared = f"{_START}|^[a-z-]+{_STATE}|^(stat|list|open) "
    tasks = [
        Task(f"all on {size}", size, {"MODE": "stale", "AT": "0", "NOT": spared}) for size in stage.plans
    ]
    return Row(
        "102",
        "NFS: every change of a file that is not training state fails, from the first to the last, on one "
        "rank and on each of two",
        "the run ends as an undisturbed one, and says what it could not write",
        tuple(_injection(folder, stage, task) for task in tasks),
    )


def _held(folder: Path, stage: runs.Stage, every: int) -> Row:
    """Another process has files open, which are renamed where they should be deleted."""
    held = {"a file of every checkpoint": r"/step-[0-9]+.*\.safetensors$", "every file": r"/[^/]*$"}
    tasks = [
        Task(f"{name}, {size} ranks", size, {"HELD": pattern})
        for name, pattern in held.items()
        for size in stage.plans
    ]
    return Row(
        "102",
        "NFS: another program has files open, so deleting one renames it to .nfs*, and its directory stays",
        "the run ends as an undisturbed one, and says what it could not delete",
        tuple(_injection(folder, stage, task) for task in tasks),
    )


KINDS = {"single": _single, "refused": _refused, "held": _held}


def _injection(folder: Path, stage: runs.Stage, task: Task) -> Injection:
    began = time.monotonic()
    problem = _problem(folder, stage, task)
    return Injection(task.name, problem, time.monotonic() - began)


def _problem(folder: Path, stage: runs.Stage, task: Task) -> str:
    run_folder = folder / "run"
    for path in folder.glob("run*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if task.world_size == 1:
        stage.copy_begun(run_folder)
    variables = {f"PLANC_NFS_{name}": value for name, value in task.variables.items()}
    variables["PLANC_NFS_TOP"] = str(run_folder)
    size = task.world_size
    found = runs.run(stage.plans[size], run_folder, world_size=size, more=SETTINGS, environment=variables)
    if {ending.code for ending in found} == {runs.STORAGE} and task.may_refuse:
        return first_problem(_resumed_problems(run_folder, stage))
    return first_problem(_ended_problems(run_folder, stage, task, [ending.code for ending in found]))


def _resumed_problems(run_folder: Path, stage: runs.Stage) -> Iterator[str]:
    yield runs.newest_problem(run_folder)
    [again] = runs.run(stage.plans[1], run_folder, world_size=1, more=SETTINGS)
    yield runs.said(run_folder) if again.code else ""
    yield runs.exactness_problem(run_folder, stage.undisturbed[1])


def _ended_problems(
    run_folder: Path, stage: runs.Stage, task: Task, codes: Sequence[int | None]
) -> Iterator[str]:
    text = "".join(runs.said(run_folder, rank=rank) for rank in range(len(codes)))
    yield "" if set(codes) == {0} else f"exits {codes}: {text}"
    yield f"a traceback: {text}" if "Traceback" in text else ""
    try:
        yield runs.exactness_problem(run_folder, stage.undisturbed[task.world_size])
    except CheckpointError as error:
        yield error.message
    kept = (runs.NUM_STEPS - 1, runs.NUM_STEPS)
    steps = committed_steps(run_folder / "checkpoints")
    yield "" if steps == kept else f"there are steps {steps}: {text}"
    is_lasting = task.variables.get("AT") == "0" or "HELD" in task.variables
    yield "nothing is said of what failed" if is_lasting and "warning: cannot " not in text else ""


if __name__ == "__main__":
    _main(sys.argv[1])
