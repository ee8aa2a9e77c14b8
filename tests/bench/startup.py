"""Prints how long commands take as whole processes, compared with what `import torch` takes on this machine.

Each command runs `--repeats` times. Goals are for the CPU time of the cheapest run: on an idle machine
that is what a user waits, and it tells something on a busy one too. The first sight of a model is measured
beyond what its imports take. The exit code is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import compileall
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.long_plan import long_plan

ROOT = Path(__file__).parents[2]
PLANS = ROOT / "plans"
REFERENCE = "import torch"
IMPORTS = "imports of a first sight"
FEW = 3
"""Runs of commands that take seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line for Python, and how much CPU time its cheapest run may take."""

    name: str
    arguments: tuple[str, ...]
    goal_seconds: float | None = None
    beyond: str | None = None
    """An earlier case whose CPU time does not count."""
    max_repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of each run: CPU time, and wall clock."""

    case: Case
    busy: tuple[float, ...]
    waited: tuple[float, ...]
    beyond_seconds: float = 0.0

    @property
    def cheapest(self) -> float:
        return min(self.busy) - self.beyond_seconds

    @property
    def verdict(self) -> str:
        if self.case.goal_seconds is None:
            return ""
        return "met" if self.cheapest <= self.case.goal_seconds else "missed"


def cases(folder: Path) -> tuple[Case, ...]:
    """What is measured; `folder` has the generated plans."""

    def planc(*words: str | Path) -> tuple[str, ...]:
        return ("-m", "planc", *map(str, words))

    imported = "import planc.inventory.probe.probe; from transformers import LlamaForCausalLM"
    quickstart = PLANS / "quickstart.plan"
    return (
        Case("python -c pass", ("-c", "pass")),
        Case(REFERENCE, ("-c", REFERENCE)),
        Case("check quickstart", planc("check", quickstart), 0.15),
        Case("check 100 lines, 8B", planc("check", folder / "100.plan"), 0.15),
        Case("check 5,000 lines, 405B", planc("check", folder / "5000.plan"), 1.0),
        Case("check llama-3.1-405b", planc("check", PLANS / "llama-3.1-405b.plan"), 0.25),
        Case("fmt --check quickstart", planc("fmt", "--check", quickstart)),
        Case("diff quickstart, 8B", planc("diff", quickstart, PLANS / "llama-3.1-8b.plan")),
        Case(IMPORTS, ("-c", imported), max_repeats=FEW),
        # With --save, whatever is saved or cached.
        Case("first sight of 8B", planc("inventory", folder / "8b", "--save"), None, IMPORTS, FEW),
        Case("first sight of 405B", planc("inventory", folder / "405b", "--save"), 2.0, IMPORTS, FEW),
    )


def measure(case: Case, *, num_repeats: int, earlier: Mapping[str, Measured]) -> Measured:
    busy, waited = [], []
    for _ in range(min(num_repeats, case.max_repeats or num_repeats)):
        started, before = time.perf_counter(), _processor_seconds()
        subprocess.run([sys.executable, *case.arguments], cwd=ROOT, check=True, capture_output=True)
        waited.append(time.perf_counter() - started)
        busy.append(_processor_seconds() - before)
    beyond = 0.0 if case.beyond is None else earlier[case.beyond].cheapest
    return Measured(case, tuple(busy), tuple(waited), beyond)


def _processor_seconds() -> float:
    """Of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(measured: Mapping[str, Measured]) -> str:
    reference = measured[REFERENCE].cheapest
    lines = [f"{'milliseconds':<28}{'busy min':>9}{'waited min':>11}{'median':>8}{'of torch':>10}{'goal':>6}"]
    for one in measured.values():
        goal = f"{one.case.goal_seconds * 1000:.0f}" if one.case.goal_seconds else ""
        waited, median = min(one.waited) * 1000, statistics.median(one.waited) * 1000
        lines.append(
            f"{one.case.name:<28}{one.cheapest * 1000:>9.0f}{waited:>11.0f}{median:>8.0f}"
            f"{one.cheapest / reference:>10.3f}{goal:>6}  {one.verdict}".rstrip()
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, metavar="N")
    arguments = parser.parse_args()
    # As pip does with a wheel's modules, torch's among them; an editable install, or an environment that
    # forbids it (PYTHONDONTWRITEBYTECODE), would make Python compile planc again in every process.
    compileall.compile_dir(ROOT / "planc", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models").symlink_to(PLANS / "models")
        for num_lines, model, num_layers in ((100, "llama-3.1-8b", 32), (5000, "llama-3.1-405b", 126)):
            text = long_plan(num_lines, model=model, num_layers=num_layers)
            (folder / f"{num_lines}.plan").write_text(text)
        for name in ("8b", "405b"):
            (folder / name).mkdir()
            shutil.copy(PLANS / "models" / f"llama-3.1-{name}" / "config.json", folder / name)
        measured: dict[str, Measured] = {}
        for case in cases(folder):
            measured[case.name] = measure(case, num_repeats=arguments.repeats, earlier=measured)
    print(table(measured))
    return 1 if any(one.verdict == "missed" for one in measured.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
