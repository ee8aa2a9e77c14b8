"""Checks of the machine that a run makes before it imports PyTorch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

from planc.diagnostics import Diagnostic, Severity
from planc.doctor.codes import BLOCKED, OUTSIDE_RANGE
from planc.doctor.examination import Check
from planc.doctor.machine import interfaces, read_storage
from planc.doctor.needs import needs_of, push_checks, pushes_of, trackers_of
from planc.doctor.packages import installed_versions, package_checks
from planc.doctor.storage import room, unwritable
from planc.doctor.variables import interface_problem
from planc.graph.graph import Graph
from planc.graph.ops import OpenLog
from planc.inventory.schema import Inventory
from planc.runtime.cpus import num_cpus
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.failures import THREADS_HELP
from planc.runtime.fetch import has_token
from planc.runtime.files.best_effort import retried
from planc.runtime.process import Launch
from planc.runtime.run_directory.obstacles import num_kept, obstacles
from planc.source import Span

_THREADS = 12
"""Threads of planc, gloo and data loading, in addition to compute threads."""
RELEASE_HELP = (
    "run with this installed release of a package though it is unsupported, such as torch==2.11.0; can be "
    "repeated"
)
"""The help of `--allow-release`."""


def require_packages(allowed: Sequence[str], launch: Launch) -> None:
    """RunError unless all packages of a run are installed, in supported or `allowed` releases.

    Rank 0 prints each allowed release. One that is not installed, or that needs no permission, is an error.
    """
    versions = installed_versions()
    errors = []
    unused = dict.fromkeys(allowed)
    for check in package_checks(versions, is_for_run=True):
        pin = f"{check.observed.name}=={versions.get(check.observed.name)}"
        for problem in check.problems:
            if problem.code is OUTSIDE_RANGE and pin in allowed:
                unused.pop(pin, None)
                if launch.rank == 0:
                    print(f"planc: unsupported, but allowed: {problem.primary.text}", file=sys.stderr)
            else:
                errors.append(problem)
    _require(errors)
    for pin in unused:
        raise RunError(
            f"--allow-release {pin}: no unsupported release of this name and version is installed",
            help="leave it out, or write NAME==VERSION as `planc doctor` reports them",
        )


def require_trackers(graph: Graph, launch: Launch, environment: Mapping[str, str]) -> None:
    """RunError if rank 0 can't use the plan's trackers: a missing package, or no W&B API key."""
    trackers = trackers_of(graph)
    if launch.rank != 0 or not trackers:
        return
    checks = package_checks(installed_versions(), is_for_run=True, trackers=trackers)
    _require(_problems(checks), is_shared=False)
    for op in graph.setup:
        for one in op.trackers if isinstance(op, OpenLog) else ():
            if one.kind == "wandb" and one.mode == "online" and not has_wandb_key(environment):
                raise RunError(
                    "no W&B API key is set; wandb would wait for one to be typed in",
                    help="run `wandb login`, set WANDB_API_KEY, or set logging.tracker.wandb.mode = offline",
                    span=op.span,
                    is_shared=False,
                )


def require_push(graph: Graph, launch: Launch, environment: Mapping[str, str]) -> None:
    """RunError if rank 0 can't push the plan's exports: no token, or no access to the Hub."""
    pushes = pushes_of(graph)
    if launch.rank != 0 or not pushes:
        return
    for check in push_checks(pushes, environment, has_token=has_token()):
        _require(check.problems, is_shared=False, span=pushes[0].span)


def has_wandb_key(environment: Mapping[str, str]) -> bool:
    """Whether the environment or the netrc file of `wandb login` has a key for W&B's server."""
    if environment.get("WANDB_API_KEY"):
        return True
    server = urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    path = Path(environment.get("NETRC") or "~/.netrc").expanduser()
    try:
        return server is not None and netrc(path).authenticators(server) is not None
    except (OSError, NetrcParseError):
        return False


def require_threads(environment: Mapping[str, str]) -> None:
    """RunError unless this process can start as many threads as a run does.

    A library that can't start a thread may end the process without an error message, so planc tries first.
    """
    text = environment.get("OMP_NUM_THREADS", "")
    wanted = _THREADS + (int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else num_cpus())
    is_over = threading.Event()
    started: list[threading.Thread] = []
    try:
        while len(started) < wanted:
            thread = threading.Thread(target=is_over.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise RunError(
            f"the system can't start thread {len(started) + 1} of the {wanted} that a run needs: {error}",
            code=ExitCode.MEMORY,
            help=THREADS_HELP,
            is_shared=False,
        ) from error
    finally:
        is_over.set()
        for thread in started:
            thread.join()


def require_interface(launch: Launch, environment: Mapping[str, str]) -> None:
    """RunError if GLOO_SOCKET_IFNAME names a missing network interface."""
    problem = interface_problem(environment, interfaces()) if launch.world_size > 1 else None
    _require([problem] if problem else [], is_shared=False)


def require_storage(folder: Path, *, launch: Launch, graph: Graph, inventory: Inventory | None) -> None:
    """RunError if rank 0 can't write the run directory, or could not save checkpoints there.

    A compiled plan has no inventory, so the size of its checkpoints is not known yet.
    """
    if launch.rank != 0:
        return
    storage = read_storage(folder)
    if storage.refusal is not None:
        _require(unwritable(storage).problems, code=ExitCode.STORAGE, is_shared=False)
        return
    if found := retried(lambda: obstacles(folder, graph)):
        raise RunError(
            "\n".join(f"{BLOCKED.summary}: {one} [{BLOCKED.code}]" for one in found),
            code=ExitCode.STORAGE,
            help="; ".join(dict.fromkeys(one.help for one in found)),
            is_shared=False,
        )
    if inventory is not None:
        check = room(storage, saves=needs_of(graph, inventory).saves, num_kept=num_kept(folder))
        _require(check.problems, code=ExitCode.STORAGE, is_shared=False)


def _problems(checks: Iterable[Check]) -> list[Diagnostic]:
    return [problem for check in checks for problem in check.problems]


def _require(
    problems: Iterable[Diagnostic],
    *,
    code: ExitCode = ExitCode.INPUT,
    is_shared: bool = True,
    span: Span | None = None,
) -> None:
    """RunError with all problems that are errors, at `span`, or at the one problem with storage."""
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if not errors:
        return
    message = "\n".join(f"{error.code.summary}: {error.primary.text} [{error.code.code}]" for error in errors)
    helps = dict.fromkeys(error.help for error in errors if error.help)
    if code is ExitCode.STORAGE and len(errors) == 1:
        span = errors[0].primary.span
    raise RunError(message, code=code, help="; ".join(helps), span=span, is_shared=is_shared)
