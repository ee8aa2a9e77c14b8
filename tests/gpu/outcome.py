"""What a step showed, kept as JSON as soon as it ended."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from tests.gpu.site import Site


class Verdict(StrEnum):
    OK = "ok"
    DIFFERS = "differs"
    """It ran to its end, and a figure is not as planc promises."""
    FAILED = "failed"
    """A command failed, or left nothing to judge."""
    TIMEOUT = "timeout"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`figures` is what the page shows, or the reason."""

    verdict: Verdict
    figures: str


@dataclass(frozen=True, slots=True)
class Result:
    """A step's outcome, with the site that it is of."""

    step: str
    outcome: Outcome
    seconds: float
    date: str
    site: Site


def write_result(result: Result, folder: Path) -> None:
    """Replace the step's file; a kill leaves the old file or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.step}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_results(folder: Path) -> dict[str, Result]:
    """All results by step. ValueError for a file of another format."""
    return {result.step: result for result in map(_read, sorted(folder.glob("*.json")))}


def _read(path: Path) -> Result:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        site = data["site"]
        site = Site(**{**site, "names": tuple(site["names"]), "allowed": tuple(site["allowed"])})
        outcome = Outcome(Verdict(data["outcome"]["verdict"]), data["outcome"]["figures"])
        return Result(data["step"], outcome, data["seconds"], data["date"], site)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a result of these steps ({error}): remove it") from error
