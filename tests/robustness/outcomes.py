"""What planc does with bad plans, in a process that watches itself (`guarded.py`)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.plans import PLANS, QUICKSTART
from tests.robustness.bad_inputs import CASES, Case
from tests.robustness.guarded import HANGS_AFTER_SECONDS

ROOT = Path(__file__).parents[2]
MAX_SHOWN_CHARACTERS = 100_000
SECRET = "hf_of_nobody"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did. `peak_bytes` is the memory that it took beyond what the process had.

    A negative `code` is the signal that ended its process; `err` then has the stack.
    """

    code: int
    out: str
    err: str
    seconds: float
    peak_bytes: int
    events: tuple[str, ...]

    @property
    def shown(self) -> str:
        return self.out + self.err


@dataclass(frozen=True, slots=True)
class Answer:
    """What a case was answered: with JSON output, and for a person."""

    machine: Outcome
    person: Outcome

    @property
    def errors(self) -> list[dict[str, Any]]:
        if self.machine.code < 0:
            return []
        found: list[dict[str, Any]] = json.loads(self.machine.out)["diagnostics"]
        return [one for one in found if one["severity"] == "error"]

    def fitting(self, case: Case) -> list[dict[str, Any]]:
        """The errors of the declared code on the declared line."""
        return [one for one in self.errors if (one["code"], one["line"]) == (case.code, case.line)]


def guarded(
    commands: Sequence[Sequence[str]],
    *,
    python: Sequence[str] = (),
    hangs_after: float = HANGS_AFTER_SECONDS,
) -> list[Outcome]:
    """What each command did, in a process of their own; `python` holds options of the interpreter's.

    One that takes `hangs_after` seconds of the processor ends the process: the next ones get another.
    """
    found: list[Outcome] = []
    while len(found) < len(commands):
        found += _until_one_dies(commands[len(found) :], python=python, hangs_after=hangs_after)
    return found


def _until_one_dies(
    commands: Sequence[Sequence[str]], *, python: Sequence[str], hangs_after: float
) -> list[Outcome]:
    """What the commands did, up to one that ended their process by a signal, which is its code."""
    result = subprocess.run(
        [sys.executable, *python, "-m", "tests.robustness.guarded", str(hangs_after)],
        input="".join(f"{json.dumps(argv)}\n" for argv in (["check", str(QUICKSTART)], *commands)),
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "HF_TOKEN": SECRET, "PATH": ""},
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    found = [Outcome(**{**line, "events": tuple(line["events"])}) for line in lines]
    if result.returncode == 0:
        assert len(found) == len(commands)
        return found
    assert result.returncode < 0 and len(found) < len(commands), result.stderr
    return [*found, Outcome(result.returncode, "", result.stderr, hangs_after, 0, ())]


def answers(folder: Path, *, python: Sequence[str] = ()) -> Mapping[str, Answer]:
    """The answer to each case by its row; the plans are written below `folder`."""
    commands = []
    for number, case in enumerate(CASES):
        own = folder / f"case{number}"
        own.mkdir()
        (own / "models").symlink_to(PLANS / "models")
        (own / "etc").symlink_to("/etc")
        argv = ["check", str(case.arrange(own)), *case.arguments]
        commands.extend(([*argv, "--output-format", "json"], argv))
    found = guarded(commands, python=python)
    pairs = zip(found[::2], found[1::2], strict=True)
    return {case.row: Answer(*pair) for case, pair in zip(CASES, pairs, strict=True)}


def misconduct(outcome: Outcome) -> Iterator[str]:
    """What no command may do, whatever it is given."""
    if outcome.code < 0:
        yield f"ended by {signal.Signals(-outcome.code).name}: {outcome.err}"
    if outcome.events:
        yield f"touched {outcome.events[0]}"
    for word in ("Traceback", "internal error", SECRET):
        if word in outcome.shown:
            yield f"shows {word}"
    if len(outcome.shown) >= MAX_SHOWN_CHARACTERS:
        yield f"prints {len(outcome.shown)} characters"
