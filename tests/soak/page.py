"""The results of a soak, and their page."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parent / "SOAK.md"
WANTED_RATIO = 0.9
_RESUMED = "resumed from "

_INTRODUCTION = """\
`make soak` trains the quickstart's model on real processes under torchrun, and every few minutes does one of
these to it, at a random instant; the same command then starts it again, until the run is complete. Saves are
written behind training (`checkpoint.mode = async`), so a fault may meet one under way.

- *no room for a shard*: RLIMIT_FSIZE of a rank's process, set from outside, until a save meets it.
- *a bit flipped*: all ranks are killed and a random bit of the newest step is flipped. The next launch must
  refuse it (exit 7); the step is then put aside, and the run resumes from the one before.
- *SIGSTOP*: the others must give the rank up after the plan's timeout, 10 s.
- *back*: from the injection to the first step that was trained after it, the planned waits included.
- *effective time*: what the steps took that the final weights consist of, over the wall time of all launches:
  what start-ups, saves, waits and steps done twice take is the rest.
- *equal*: the SHA-256 of every file of the last checkpoint, weights and moments, is that of a run of the same
  plan that nothing disturbed."""


@dataclass(slots=True)
class Hit:
    """One fault. `problem` is empty if the immediate checks passed."""

    name: str
    step: int
    problem: str = ""
    back_seconds: float = 0.0
    resumed_step: int = 0
    began: float = field(default_factory=time.monotonic)

    def recovered(self, said: str) -> None:
        """Training resumes, as the launch `said`."""
        self.back_seconds = time.monotonic() - self.began
        _, _, after = said.partition(_RESUMED)
        step = after.splitlines()[0].partition(" ")[0].rpartition("step-")[2] if after else ""
        self.resumed_step = int(step) if step.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Soaked:
    """A run with faults, compared with one without."""

    hits: tuple[Hit, ...]
    num_missed: int
    num_steps: int
    save_every: int
    useful_seconds: float
    wall_seconds: float
    undisturbed_seconds: float
    digest: str
    wanted: str

    @property
    def effective(self) -> float:
        return self.useful_seconds / self.wall_seconds

    def problems(self) -> Iterator[str]:
        """Every promise that was not kept, except the ratio: short runs start as often as long ones."""
        yield from (f"{hit.name} at step {hit.step}: {hit.problem}" for hit in self.hits if hit.problem)
        if not self.digest:
            yield "the run is not complete"
        elif self.digest != self.wanted:
            yield "the last weights or moments differ from those of the run without faults"

    def summary(self) -> str:
        """For a terminal."""
        lines = [
            f"{len(self.hits)} faults, {sum(not hit.problem for hit in self.hits)} as promised"
            + (f"; {self.num_missed} found the run complete" if self.num_missed else ""),
            f"{self.num_steps} steps in {self.wall_seconds:.0f} s; "
            f"without faults, steps alone, {self.undisturbed_seconds:.0f} s",
            f"effective time {self.effective:.1%}",
            f"digest {self.digest or 'none'}, {'equal' if self.digest == self.wanted else self.wanted}",
            *(f"PROBLEM {problem}" for problem in self.problems()),
        ]
        return "\n".join(lines)


def write_page(found: Soaked, *, options: argparse.Namespace) -> None:
    """Replaces SOAK.md."""
    place = f"torch {version('torch')}, Python {platform.python_version()}, gloo on CPUs"
    length = "--undisturbed FOLDER" if options.undisturbed else f"--minutes {options.minutes:g}"
    command = (
        f"python -m tests.soak.soak {length} --faults {options.faults} "
        f"--ranks {options.ranks} --seed {options.seed}"
    )
    equal = "equal" if found.digest and found.digest == found.wanted else "NOT equal"
    reached = "reached" if found.effective >= WANTED_RATIO else "missed"
    result = [
        f"- {len(found.hits)} faults in {found.wall_seconds / 60:.1f} min; "
        f"{sum(not hit.problem for hit in found.hits)} ended as promised.",
        f"- The last checkpoint ({found.num_steps} steps, a save every {found.save_every}) is {equal} to "
        f"that of the run without faults, whose steps took {found.undisturbed_seconds / 60:.1f} min.",
        f"- Effective time {found.effective:.1%}; the goal of {WANTED_RATIO:.0%} is {reached}.",
    ]
    problems = [f"- {problem}" for problem in found.problems()]
    sections = [
        f"# Soak\n\n{date.today().isoformat()}, {place}: `{command}`.",
        "\n".join(result),
        _INTRODUCTION,
        _table(found),
        *(["## Not as promised\n\n" + "\n".join(problems)] if problems else []),
    ]
    PAGE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def _table(found: Soaked) -> str:
    rows = ["| at step | fault | resumed from | back, s |", "|---:|---|---:|---:|"]
    for hit in found.hits:
        rows.append(f"| {hit.step} | {hit.name} | step {hit.resumed_step} | {hit.back_seconds:.1f} |")
    return "\n".join(rows)
