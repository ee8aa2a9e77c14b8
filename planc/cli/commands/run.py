"""`planc run`: run a plan, or an artifact of one, on this rank.

Every rank compiles the plan itself; ranks compare the graph's hash before the first collective.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from planc.cli.running.preflight import RELEASE_HELP
from planc.cli.running.run_errors import record, report, report_unforeseen, run_directory
from planc.cli.running.session import Session
from planc.cli.running.starting import Options
from planc.cli.running.watching import listen
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.options import (
    add_allow_change_argument,
    add_plan_argument,
    add_run_dir_argument,
    add_set_argument,
)
from planc.cli.support.parser import Parser
from planc.cli.support.streams import outlive_readers, quiet_libraries, show_crashes
from planc.outgoing import guard
from planc.runtime.collectives import SKIP_CHECK
from planc.runtime.cpus import unsupported_system
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.runtime.process import Launch, read_launch

DESCRIPTION = "Run a plan, or a compiled plan, on this rank. Start all ranks with torchrun."
EPILOG = """examples:
  torchrun --nproc-per-node 4 -m planc.run plans/quickstart.plan
  python -m planc.run plans/launch-one-process.plan

exit codes: 0 done, 2 bad input, 4 storage, 5 numerics, 6 communication, 7 corrupt checkpoint,
8 out of memory or threads, 75 stopped by a signal (SIGTERM, Ctrl-C, SIGHUP, SIGUSR1) after saving: the same
command resumes. status.json in the run directory has the code too, because torchrun returns 1 for every
failure."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan_argument(parser, help="a .plan file, or an artifact from `planc compile`", type=Path)
    add_set_argument(parser)
    add_run_dir_argument(parser)
    parser.add_argument(
        "--stop-after", type=_step, metavar="STEP", help="stop after this step; save as the plan says"
    )
    parser.add_argument(
        "--sample-ids", action="store_true", help="write the sample ids of each step to metrics.jsonl"
    )
    parser.add_argument(
        SKIP_CHECK,
        action="store_true",
        help="do not compare the collectives of the first step with those that the graph predicts",
    )
    add_allow_change_argument(parser)
    parser.add_argument("--allow-release", action="append", default=[], metavar="PIN", help=RELEASE_HELP)


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:18]) > 0):
        raise ValueError(text)
    return int(text)


_step.__name__ = "step"  # argparse names the type by it: invalid step value


def main(argv: Sequence[str] | None = None) -> NoReturn:
    parser = Parser("planc.run", description=DESCRIPTION, epilog=EPILOG)
    add_arguments(parser)
    for stream in (sys.stdout, sys.stderr):
        guard(stream, environment=os.environ)
    run(parser.parse_args(argv))


def run(arguments: argparse.Namespace) -> NoReturn:
    """Run a plan and end the process with the run's exit code."""
    outlive_readers()
    show_crashes()
    quiet_libraries(os.environ)
    # Imports leave no garbage, and collection takes a fifth of their time. The session turns it on again.
    gc.disable()
    leave(_run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    refusal = unsupported_system("run")
    if refusal:
        print(f"planc: error: {refusal}", file=sys.stderr)
        return ExitCode.INPUT
    launch = Launch(rank=_rank_hint())
    # Known before the plan is read, so a rejected launch is recorded in the directory of the run to resume.
    directory = run_directory(arguments.run_dir) if arguments.run_dir else None
    try:
        listener = listen(launch, directory)
    except RuntimeError as error:  # no thread can be started
        return report_unforeseen(error, launch, directory)
    options = Options(**{one.name: getattr(arguments, one.name) for one in fields(Options)})
    session = Session(options, listener, sys.stdout, launch, directory)
    try:
        for _ in session.steps():
            pass
    except RunError as error:
        listener.notice.has_failed = listener.notice.is_over = True
        report(error, session.launch, session.directory)
        return error.code
    except KeyboardInterrupt:
        record(RunError("interrupted", code=ExitCode.INTERRUPTED), session.launch, session.directory)
        if session.launch.rank == 0:
            print("planc: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except STOPS:
        raise
    except BaseException as error:
        listener.notice.has_failed = listener.notice.is_over = True
        return report_unforeseen(error, session.launch, session.directory)
    return session.code


def _rank_hint() -> int:
    """The rank that decides who reports, before the environment has been validated."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def on_rank(work: Callable[[Launch], None]) -> int:
    """Do the work of a command on this rank, and return the exit code that a run would have."""
    show_crashes()
    quiet_libraries(os.environ)
    gc.enable()
    launch = Launch()
    try:
        launch = read_launch(os.environ)
        work(launch)
        code = CLEAN
    except RunError as error:
        report(error, launch, None)
        code = error.code
    except (UsageError, *STOPS):
        raise
    except BaseException as error:
        code = report_unforeseen(error, launch, None)
    if launch.world_size > 1:
        # Threads of a process group must not keep a rank alive.
        leave(code)
    return code


def leave(code: int) -> NoReturn:
    """End the process at once, without the interpreter's shutdown.

    Threads of a broken process group could keep a failed rank alive. A thread of an intact one that frees a
    tensor during shutdown aborts the process: on a busy machine, in one of ten finished runs.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
