"""Run the steps of a first hour on a GPU: `python -m tests.gpu.run`, or `make gpu`.

Every step's result is stored as soon as it ends, and the page is written again; steps with a result for this
code, PyTorch and devices are not repeated. The exit code is 0 if every step of this site has a result that is
ok or skipped, 1 if one has not, 2 if nothing can run here.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.gpu.commands import expanded, run_commands
from tests.gpu.judges import judged
from tests.gpu.outcome import Outcome, Result, Verdict, read_results, write_result
from tests.gpu.page import PAGE, RESULTS, page
from tests.gpu.site import ROOT, NoDeviceError, Site, read_site, unsupported_torch
from tests.gpu.steps import STEPS, Step


@dataclass(frozen=True, slots=True)
class Places:
    """Where steps write, where results are kept, and the page; None for results that are not published."""

    work: Path
    results: Path
    page: Path | None


CUDA = Places(ROOT / "runs" / "gpu", RESULTS, PAGE)
CPU = Places(ROOT / "runs" / "gpu-cpu", ROOT / "runs" / "gpu-cpu" / "results", None)


def pending(
    steps: Sequence[Step], results: Mapping[str, Result], site: Site, *, again: bool = False
) -> list[Step]:
    """The steps without a result for this site."""
    done = {name for name, result in results.items() if result.site.key == site.key}
    return [step for step in steps if again or step.name not in done]


def run_step(step: Step, site: Site, places: Places) -> Result:
    """The step's result, which is stored, and on the page if there is one."""
    began, date = time.monotonic(), datetime.now(UTC).date().isoformat()
    outcome = _outcome(step, site, places.work / step.name)
    result = Result(step.name, outcome, round(time.monotonic() - began, 1), date, site)
    write_result(result, places.results)
    if places.page is not None:
        places.page.write_text(page(read_results(places.results)), encoding="utf-8")
    return result


def _outcome(step: Step, site: Site, folder: Path) -> Outcome:
    if site.num_devices < step.least_devices:
        return Outcome(Verdict.SKIPPED, f"needs {step.least_devices} devices")
    # A run directory of an earlier try would be resumed.
    if folder.exists():
        shutil.rmtree(folder)
    outcome = judged(step.judge, run_commands(step.commands, site, folder, seconds=60 * step.minutes))
    # Several of 7 GB would fill a disk before the last step.
    for checkpoints in folder.glob("*/checkpoints"):
        shutil.rmtree(checkpoints)
    return outcome


def show(step: Step, site: Site, work: Path) -> None:
    """Print the commands of a step."""
    print(f"{step.name}: {step.shows} (at most {step.minutes:g} min)")
    for command in step.commands:
        if command.device in (None, site.device):
            print("  " + " ".join(expanded(command, site, work / step.name)))


def run_all(steps: Sequence[Step], site: Site, places: Places) -> list[Result]:
    results = []
    for step in steps:
        print(f"{step.name:<12} ...", end=" ", flush=True)
        results.append(run_step(step, site, places))
        outcome = results[-1].outcome
        print(f"{outcome.verdict.value:<8} {results[-1].seconds:6.1f} s  {outcome.figures}", flush=True)
    return results


def main(argv: Sequence[str] | None = None, *, steps: Sequence[Step] = STEPS) -> int:
    arguments = _parser(steps).parse_args(argv)
    try:
        allowed = tuple(arguments.allow_release)
        site = read_site(arguments.device, num_devices=arguments.devices, allowed=allowed)
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
    chosen = [step for step in steps if not arguments.only or step.name in arguments.only]
    if arguments.dry_run:
        for step in chosen:
            show(step, site, places.work)
        return 0
    try:
        results = read_results(places.results)
    except ValueError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    run_all(pending(chosen, results, site, again=arguments.again), site, places)
    return _exit_code(chosen, read_results(places.results), site)


def _exit_code(steps: Sequence[Step], results: Mapping[str, Result], site: Site) -> int:
    good = {
        name
        for name, result in results.items()
        if result.site.key == site.key and result.outcome.verdict in (Verdict.OK, Verdict.SKIPPED)
    }
    missed = [step.name for step in steps if step.name not in good]
    print(f"not ok: {', '.join(missed)}" if missed else "every step is ok or skipped")
    return 1 if missed else 0


def _parser(steps: Sequence[Step]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.gpu.run", description=__doc__)
    names = [step.name for step in steps]
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="STEP", help=", ".join(names))
    parser.add_argument("--again", action="store_true", help="repeat steps that have a result")
    parser.add_argument("--devices", type=int, metavar="N", help="use the first N devices (default: all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only try the logic")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run none")
    parser.add_argument(
        "--allow-release", action="append", default=[], metavar="PIN", help="as of planc run: torch==2.11.0"
    )
    return parser


if __name__ == "__main__":
    # A command is a session of its own, so it does not receive the signals that end this one.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    sys.exit(main())
