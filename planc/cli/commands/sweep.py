"""`planc sweep`."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planc.cli.commands.runs import list_runs, table
from planc.cli.running.starting import Options, start_with
from planc.cli.support import plans
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError, require_libraries
from planc.cli.support.options import add_allow_change_argument, add_plan_argument, add_set_argument
from planc.graph.graph import Graph, plan_hash
from planc.record import record
from planc.report.run import read_run
from planc.runtime.errors import ExitCode
from planc.runtime.run_directory.directory import RunDirectory
from planc.tables import plural

DESCRIPTION = """\
Run a plan at every point of a grid of settings, one after the other, each in a directory of its own.

All points are checked before the first one runs. Started again, a sweep leaves out the points that are done
and starts the others again: they resume as the plan's `checkpoint` block has it, or from step 1 without one.
It waits for a point that another process is running, such as the run of a sweep that was killed.
A run that fails does not keep the others from running.

The runs are processes of this machine. --print prints their commands instead, to launch as you like."""

EPILOG = """\
examples:
  planc sweep llama.plan --grid optimizer.lr=1e-4,3e-4 model.seed=0..2 --print
  planc sweep llama.plan --grid model.seed=0..1 --set train.steps=2 --run-dir runs/seeds

exit codes: 0 all runs are done; 1 a plan has errors, or runs failed; 2 could not run; 75 stopped by a signal:
the same command continues."""


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_argument(parser)
    parser.add_argument(
        "--grid",
        nargs="+",
        action="extend",
        required=True,
        metavar="PATH=VALUES",
        help="values between commas, or a range of integers: optimizer.lr=1e-4,3e-4 model.seed=0..2",
    )
    add_set_argument(parser)
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="directory of the runs; default: runs/NAME-sweep"
    )
    add_allow_change_argument(parser)
    parser.add_argument("--print", action="store_true", help="print the command of each run, and run none")


_POLL_SECONDS = 0.5


@record
class _Run:
    """A point with what it runs."""

    point: _Point
    options: Options
    graph: Graph
    devices_per_node: int | None

    @property
    def command(self) -> str:
        """One shell line."""
        world_size = self.graph.world_size
        return start_with(self.options, world_size=world_size, devices_per_node=self.devices_per_node)


def run(arguments: Namespace) -> int:
    """Exits as EPILOG has it."""
    folder = arguments.run_dir or Path("runs") / f"{Path(arguments.plan).stem}-sweep"
    runs = [_checked(point, arguments, folder) for point in points(arguments.grid)]
    sound = [swept for swept in runs if swept is not None]
    if len(sound) < len(runs):
        faulty = plural(len(runs) - len(sound), "point")
        print(f"planc: error: {faulty} of {len(runs)} can't run", file=sys.stderr)
        return FINDINGS
    if arguments.print:
        for swept in sound:
            print(swept.command)
        return CLEAN
    require_libraries("planc sweep", "torch")
    code = _run_all(sound)
    listed, _ = list_runs(folder)
    sys.stdout.write(table(listed))
    return code


def _checked(point: _Point, arguments: Namespace, folder: Path) -> _Run | None:
    """The run of a point; None for a plan with errors, which are printed below the name of the point."""
    texts = (*arguments.set, *point.settings)
    settings = plans.settings(Namespace(set=texts, quiet=True))
    checked = plans.check(arguments.plan, settings=settings, is_quiet=True)
    if checked.graph is None or checked.plan is None:
        print(f"{point.name}:", file=sys.stderr)
        sys.stderr.write(plans.render_errors(checked, stream=sys.stderr))
        return None
    allowed = arguments.allow_change
    options = Options(Path(arguments.plan), set=texts, run_dir=folder / point.name, allow_change=allowed)
    return _Run(point, options, checked.graph, checked.plan.mesh.devices_per_node)


def _run_all(runs: Sequence[_Run]) -> int:
    """Run the points that are not done, and return the exit code of the sweep."""
    waiting = [swept for swept in runs if not _is_done(swept)]
    print(f"{plural(len(runs), 'run')}, {len(runs) - len(waiting)} done", flush=True)
    failed = 0
    for number, swept in enumerate(waiting, start=len(runs) - len(waiting) + 1):
        print(f"\nrun {number} of {len(runs)}: {swept.point.name}\n$ {swept.command}", flush=True)
        code = _start(swept)
        if code == ExitCode.PREEMPTED:
            return code
        if code:
            failed += 1
            print(f"planc: {swept.point.name} failed with exit code {code}", file=sys.stderr, flush=True)
    print(flush=True)
    return FINDINGS if failed else CLEAN


def _is_done(swept: _Run) -> bool:
    """UsageError for a directory with a finished run of another plan."""
    status = _status(swept)
    if status.get("state") == "done" and status.get("plan_hash") != plan_hash(swept.graph):
        folder = swept.options.run_dir
        raise UsageError(f"{folder} has a run of another plan: choose another directory with --run-dir")
    return status.get("state") == "done"


def _start(swept: _Run) -> int:
    """Run a point's command to its end, and return the exit code of the run, which torchrun hides."""
    if swept.devices_per_node is not None and swept.graph.world_size > swept.devices_per_node:
        raise UsageError("the plan needs several machines: pass --print, and launch the commands there")
    process: subprocess.Popen[bytes] | None = None
    is_stopped = False

    def stop(number: int, frame: Any) -> None:
        nonlocal is_stopped
        is_stopped = True
        # A terminal sends Ctrl-C to the run as well.
        if process is not None and number != signal.SIGINT:
            process.send_signal(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _await_other_run(swept, is_stopped=lambda: is_stopped)
        if is_stopped:
            return ExitCode.PREEMPTED
        if _is_done(swept):
            return CLEAN
        _, *words = shlex.split(swept.command)
        process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words])
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    recorded = _status(swept).get("exit_code")
    if is_stopped or recorded == ExitCode.PREEMPTED:
        return ExitCode.PREEMPTED
    return recorded if code and isinstance(recorded, int) and recorded else code


def _await_other_run(swept: _Run, *, is_stopped: Callable[[], bool]) -> None:
    """Return once no other process runs the point: a run outlives its sweep if the sweep alone is killed."""
    folder = swept.options.run_dir
    assert folder is not None, "every point has a directory"
    has_waited = False
    # A directory that can't be read is for the run to refuse.
    with contextlib.suppress(OSError):
        while (writer := RunDirectory(folder).other_writer()) is not None and not is_stopped():
            if not has_waited:
                print(f"{writer} is running this point: waiting until it ends", flush=True)
            has_waited = True
            time.sleep(_POLL_SECONDS)


def _status(swept: _Run) -> Mapping[str, Any]:
    """The status of a point's run; empty if it has not begun."""
    folder = swept.options.run_dir
    return read_run(folder).status if folder is not None and folder.is_dir() else {}


_MAX_POINTS = 10_000
_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})", re.ASCII)
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.,=+-]")


@record
class _Point:
    """One combination, as settings for `--set`; `name` is its directory."""

    name: str
    settings: tuple[str, ...]


def points(axes: Sequence[str]) -> tuple[_Point, ...]:
    """The points of axes such as `optimizer.lr=1e-4,3e-4` and `model.seed=0..2`, the last varying fastest.

    UsageError for an axis without values, for two of one setting, and for too many points.
    """
    parsed = [_axis(text) for text in axes]
    names = [path for path, _ in parsed]
    if twice := next((path for path in names if names.count(path) > 1), None):
        raise UsageError(f"--grid has {twice} twice")
    combined = []
    for values in itertools.product(*(values for _, values in parsed)):
        settings = tuple(f"{path}={value}" for path, value in zip(names, values, strict=True))
        combined.append(_Point(_UNUSUAL.sub("_", ",".join(map(_short, settings))), settings))
        if len(combined) > _MAX_POINTS:
            raise UsageError(f"--grid has more than {_MAX_POINTS} points")
    names = [point.name for point in combined]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two points of --grid would have the directory {twice}")
    return tuple(combined)


def _axis(text: str) -> tuple[str, list[str]]:
    path, equals, values = text.partition("=")
    if not (equals and path.strip() and values.strip()):
        raise UsageError(f"--grid {text}: write PATH=VALUE,VALUE or PATH=FIRST..LAST")
    ends = _RANGE.fullmatch(values.strip())
    if ends is not None:
        first, last = map(int, ends.groups())
        if last < first or last - first >= _MAX_POINTS:
            raise UsageError(f"--grid {text}: the range must go up, to at most {_MAX_POINTS} values")
        return path.strip(), [str(value) for value in range(first, last + 1)]
    parts = [part.strip() for part in _split(values)]
    if not all(parts):
        raise UsageError(f"--grid {text}: a value is empty")
    return path.strip(), parts


def _split(values: str) -> list[str]:
    """Values between commas that are in no bracket or string: `adamw(lr = 1e-3, eps = 1e-8),sgd`."""
    parts, depth, in_text = [""], 0, False
    for character in values:
        in_text ^= character == '"'
        if not in_text:
            depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0 and not in_text:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _short(setting: str) -> str:
    """`lr=1e-4` of `optimizer.lr=1e-4`."""
    path, _, value = setting.partition("=")
    return f"{path.rpartition('.')[2]}={value}"
