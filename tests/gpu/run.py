"""Run the steps of a session on a GPU: `python -m tests.gpu.run`, or `make gpu`.

First all steps that can run side by side, as memory and cores allow, then the timings, each alone. What no
device has measured yet comes first. Every step's result is stored as soon as it ends, and the page is written
again; steps with a result for this code, PyTorch and devices are not repeated. With --minutes, the steps that
are worth most are taken as far as they are expected to fit, and the others are named. The exit code is 0 if
every step that was taken has a result that is ok or skipped, 1 if one has not, 2 if nothing can run here.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from tests.gpu.commands import Command, expanded, run_commands
from tests.gpu.judges import judged, program_ended
from tests.gpu.outcome import Outcome, Result, Verdict, read_results, write_result
from tests.gpu.page import PAGES, RESULTS, page, publish
from tests.gpu.schedule import Capacity, fitting, makespan, ordered, run_side_by_side, with_needs
from tests.gpu.site import ROOT, NoDeviceError, Site, read_site, unsupported_torch
from tests.gpu.steps import STEPS, Step

_PATIENCE = 1.3
"""How much longer than expected the steps side by side may take before the timings start without them."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where steps write, and where results are kept; `is_published` if they belong on the page."""

    work: Path
    results: Path
    is_published: bool


CUDA = Places(ROOT / "runs" / "gpu", RESULTS, True)
CPU = Places(ROOT / "runs" / "gpu-cpu", ROOT / "runs" / "gpu-cpu" / "results", False)


@dataclass(frozen=True, slots=True)
class Session:
    """Steps of one site until `end`, on the monotonic clock."""

    site: Site
    places: Places
    end: float
    cancelled: Event

    def measure(self, step: Step, deadline: float) -> Result | None:
        """The step's result; None if the session, not the step, had no time for it."""
        left = min(deadline, self.end) - time.monotonic()
        limit = step.limit(self.site)
        if self.cancelled.is_set() or left < min(0.7 * step.expected(self.site), limit):
            return None
        began, date = time.monotonic(), datetime.now(UTC).date().isoformat()
        outcome = self._outcome(step, min(left, limit))
        if outcome.verdict is Verdict.TIMEOUT and (left < limit or self.cancelled.is_set()):
            return None
        return Result(step.name, outcome, round(time.monotonic() - began, 1), date, self.site)

    def _outcome(self, step: Step, seconds: float) -> Outcome:
        if self.site.num_devices < step.least_devices:
            return Outcome(Verdict.SKIPPED, f"needs {step.least_devices} devices")
        if step.gib > self.site.memory_gib:
            return Outcome(Verdict.SKIPPED, f"needs {step.gib:g} GiB of device memory")
        folder = self.places.work / step.name
        # A run directory of an earlier try would be resumed.
        if folder.exists():
            shutil.rmtree(folder)
        threads = step.cores if step.is_alone else 1
        ran = run_commands(
            step.commands, self.site, folder, seconds=seconds, threads=threads, cancelled=self.cancelled
        )
        outcome = judged(step.judge, ran)
        # Several of 7 GB would fill a disk before the last step.
        for checkpoints in folder.glob("*/checkpoints"):
            shutil.rmtree(checkpoints)
        return outcome

    def store(self, result: Result) -> None:
        """Keep a result, and put it on the page."""
        write_result(result, self.places.results)
        if self.places.is_published:
            PAGES.gpu.write_text(page(read_results(self.places.results)), encoding="utf-8")


def pending(
    steps: Sequence[Step], results: Mapping[str, Result], site: Site, *, again: bool = False
) -> list[Step]:
    """The steps without a result for this site."""
    done = {name for name, result in results.items() if result.site.key == site.key}
    return [step for step in steps if again or step.name not in done]


def run_step(step: Step, site: Site, places: Places) -> Result:
    """The step's result, which is stored, and on the page if it belongs there."""
    session = Session(site, places, math.inf, Event())
    result = session.measure(step, math.inf)
    assert result is not None, "a session without an end has time for every step"
    session.store(result)
    return result


def show(step: Step, site: Site, work: Path) -> None:
    """Print the commands of a step."""
    how = "alone" if step.is_alone else f"{step.gib:g} GiB, {step.cores} cores"
    print(f"{step.name}: {step.shows} (about {step.expected(site):g} s, {how})")
    for command in step.commands:
        if command.device in (None, site.device):
            print("  " + " ".join(expanded(command, site, work / step.name)))


def run_all(steps: Sequence[Step], session: Session, capacity: Capacity) -> list[str]:
    """Run and store the steps; return the names of those that there was no time for."""
    left_out, began = [], time.monotonic()
    for step, result in _results(steps, session, capacity):
        seconds = time.monotonic() - began
        if result is None:
            left_out.append(step.name)
            print(f"{seconds:6.0f} s  {step.name:<18} no time left", flush=True)
            continue
        session.store(result)
        outcome = result.outcome
        print(
            f"{seconds:6.0f} s  {step.name:<18} {outcome.verdict.value:<8} {result.seconds:6.1f} s  "
            f"{outcome.figures}",
            flush=True,
        )
    return left_out


def _results(
    steps: Sequence[Step], session: Session, capacity: Capacity
) -> Iterator[tuple[Step, Result | None]]:
    together = [step for step in steps if not step.is_alone]
    expected = makespan(together, session.site, capacity)
    alone = [step for step in steps if step.is_alone]
    # Without timings after them, or without an end, there is nothing to make room for.
    deadline = time.monotonic() + _PATIENCE * expected + 20 if alone else session.end
    deadline = deadline if math.isfinite(session.end) else math.inf
    yield from run_side_by_side(
        together, capacity, lambda step: session.measure(step, deadline), session.cancelled
    )
    for step in alone:
        yield step, session.measure(step, session.end)


def main(argv: Sequence[str] | None = None, *, steps: Sequence[Step] = STEPS) -> int:
    began = time.monotonic()
    arguments = _parser(steps).parse_args(argv)
    try:
        site = read_site(
            arguments.device,
            num_devices=arguments.devices,
            allowed=tuple(arguments.allow_release),
            commit=arguments.commit,
        )
    except NoDeviceError as error:
        print(error, file=sys.stderr)
        return 2
    pin = unsupported_torch(site)
    if pin is not None:
        print(
            f"make gpu: {pin} is below the release that planc supports and is tested with; "
            f"--allow-release {pin} runs all steps with it, and the page says so",
            file=sys.stderr,
        )
        return 2
    places = CUDA if site.is_cuda else CPU
    try:
        results = read_results(places.results)
    except ValueError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    named = [step for step in steps if not arguments.only or step.name in arguments.only]
    # Of any code: after a change every step is due again.
    measured = read_results(RESULTS)
    chosen = [*map(_program, arguments.program), *ordered(named, arguments.first, measured=measured)]
    wanted = pending(chosen, results, site, again=arguments.again or arguments.dry_run)
    wanted = with_needs(wanted, steps, lambda name: (places.work / name).is_dir())
    capacity = Capacity(site.memory_gib, arguments.cores)
    end = began + 60 * arguments.minutes
    taken, left = fitting(wanted, site, capacity, seconds=end - time.monotonic())
    for line in _intentions(taken, left, site, capacity):
        print(line, flush=True)
    if arguments.dry_run:
        for step in taken:
            show(step, site, places.work)
        return 0
    left_out = run_all(taken, Session(site, places, end, Event()), capacity)
    if places.is_published:
        publish(read_results(places.results), PAGES)
    left_names = [*(step.name for step in left), *left_out]
    expected = [step for step in (*chosen, *taken) if step.name not in left_names]
    return _exit_code(expected, read_results(places.results), site, left_names)


def _program(arguments: Sequence[str]) -> Step:
    """A program of the user's own as a step: beside the others, or alone after them."""
    file, *words = shlex.split(arguments[0])
    path, seconds, is_alone = Path(file), float(arguments[1]), arguments[2] == "alone"
    return Step(
        "-".join(("program", path.stem, *words)),
        f"{arguments[0]}, a program of the user's own",
        (Command(("{python}", str(path.resolve()), *words), variables={"OUT": "{out}"}),),
        program_ended,
        seconds=seconds,
        cpu_seconds=seconds,
        gib=0.0 if is_alone else float(arguments[2]),
        cores=8 if is_alone else 1,
        is_alone=is_alone,
    )


def _intentions(taken: Sequence[Step], left: Sequence[Step], site: Site, capacity: Capacity) -> Iterator[str]:
    yield f"{len(taken)} steps in about {makespan(taken, site, capacity) / 60:.1f} minutes"
    if left:
        yield f"left out, for lack of time: {', '.join(step.name for step in left)}"


def _exit_code(
    steps: Sequence[Step], results: Mapping[str, Result], site: Site, left_out: Sequence[str]
) -> int:
    good = {
        name
        for name, result in results.items()
        if result.site.key == site.key and result.outcome.verdict in (Verdict.OK, Verdict.SKIPPED)
    }
    if left_out:
        print(f"no time for: {', '.join(dict.fromkeys(left_out))}")
    missed = dict.fromkeys(step.name for step in steps if step.name not in good)
    print(f"not ok: {', '.join(missed)}" if missed else "every step that was taken is ok or skipped")
    return 1 if missed else 0


def _parser(steps: Sequence[Step]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.gpu.run", description=__doc__)
    names = [step.name for step in steps]
    of = {"nargs": "+", "choices": names, "default": [], "metavar": "STEP"}
    parser.add_argument("--only", **of, help=", ".join(names))
    parser.add_argument("--first", **of, help="take these steps before the others")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, metavar="M", help="take the steps that fit into this time"
    )
    parser.add_argument("--again", action="store_true", help="repeat steps that have a result")
    parser.add_argument("--devices", type=int, metavar="N", help="use the first N devices (default: all)")
    parser.add_argument(
        "--cores", type=int, default=os.cpu_count() or 1, metavar="N", help="share N cores (default: all)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only try the logic")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run none")
    parser.add_argument("--commit", metavar="SHA", help="the commit of this tree, if git does not know it")
    parser.add_argument(
        "--allow-release", action="append", default=[], metavar="PIN", help="as of planc run: torch==2.11.0"
    )
    parser.add_argument(
        "--program",
        action="append",
        nargs=3,
        default=[],
        metavar=("PROGRAM", "SECONDS", "GIB"),
        help="also run this Python program with its arguments, beside steps with so much memory or `alone`; "
        "its $OUT is a folder of its own; can be repeated",
    )
    return parser


if __name__ == "__main__":
    # A command is a session of its own, so it does not receive the signals that end this one.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    sys.exit(main())
