"""`planc runs`."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.options import add_output_format_argument
from planc.cli.versions.revisions import read_side
from planc.diff.among import among
from planc.figures.times import tokens_per_second
from planc.report.run import read_run
from planc.report.runs import Listed
from planc.runtime.files.run_files import CHECKPOINTS, KEPT_PLANS, LOGS, PLAN_NAME
from planc.tables import plural, render_table

DESCRIPTION = """\
List the runs of a directory in a table: state, step, loss and speed, and what differs between their plans.

A run is a directory with a compiled plan, at any depth. The loss and the speed are those of the last logged
step. A column for each setting in which plans differ follows, as `planc diff` names it."""

EPILOG = """\
examples:
  planc runs
  planc runs runs --sort loss
  planc runs --output-format json | jq '.runs[] | select(.state == "done") | .loss'"""

_BRANCHED = "branched from"
"""The label of `checkpoint.branch` in differences between plans."""
_INSIDE = (CHECKPOINTS, KEPT_PLANS, LOGS, "export")
"""Directories of a run that hold no further runs."""
_MAX_DIFFERENCES = 8
_SORTS = ("name", "loss", "step", "speed")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default="runs", type=Path, help="default: runs")
    parser.add_argument("--sort", choices=_SORTS, default="name", help="the best first; default: name")
    add_output_format_argument(parser)


def run(arguments: Namespace) -> int:
    """0, also for a directory without runs; 2 if it can't be read."""
    if not arguments.directory.is_dir():
        raise UsageError(f"{arguments.directory} is not a directory")
    listed, unread = list_runs(arguments.directory)
    if arguments.output_format == "json":
        sys.stdout.write(json.dumps(document(listed, sort=arguments.sort), indent=2) + "\n")
    else:
        sys.stdout.write(table(listed, sort=arguments.sort) if listed else "no runs\n")
    for text in unread:
        print(f"planc: warning: {text}", file=sys.stderr)
    return CLEAN


def is_directory_of_runs(directory: Path) -> bool:
    """Whether a directory is not a run itself, and has some below."""
    return not (directory / PLAN_NAME).exists() and next(_folders(directory), None) is not None


def list_runs(directory: Path) -> tuple[list[Listed], list[str]]:
    """The runs below a directory by name, and why some can't be read."""
    runs, unread = [], []
    for folder in _folders(directory):
        try:
            side, _ = read_side(str(folder), settings=(), world_size=None)
            assert side is not None, "a directory has a compiled plan"
            name = folder.relative_to(directory).as_posix()
            runs.append(Listed(folder.name if name == "." else name, side, read_run(folder)))
        except (UsageError, OSError) as error:
            unread.append(f"{folder}: {error}")
    return runs, unread


def table(runs: Sequence[Listed], *, sort: str = "name") -> str:
    """One row for each run, with a column for each of what differs between their plans."""
    differing = _columns(runs)
    names = list(differing)[:_MAX_DIFFERENCES]
    rows = [
        (_key(run, sort), (*_cells(run), *(differing[name][place] for name in names)))
        for place, run in enumerate(runs)
    ]
    rows.sort(key=lambda row: row[0])
    header = ("run", "state", "step", "loss", "tokens/s", *names)
    text = render_table([cells for _, cells in rows], header=header, right=(2, 3, 4))
    more = len(differing) - len(names)
    return text + (f"{plural(more, 'more difference')}: planc diff RUN OTHER\n" if more else "")


def document(runs: Sequence[Listed], *, sort: str = "name") -> dict[str, Any]:
    """The runs with their last logged values, and all of what differs between their plans."""
    differing = _columns(runs)
    listed = [
        {
            "name": run.name,
            "state": run.state,
            "step": run.step,
            "steps": run.side.graph.num_steps,
            "loss": run.last("loss"),
            "tokens_per_second": run.last("tokens_per_second"),
            "differences": {name: cells[place] for name, cells in differing.items()},
        }
        for place, run in sorted(enumerate(runs), key=lambda numbered: _key(numbered[1], sort))
    ]
    return {"format_version": 1, "runs": listed}


def _columns(runs: Sequence[Listed]) -> Mapping[str, Sequence[str]]:
    """The checkpoints that runs branched from, their best ones, and the values in which plans differ."""
    # A plan may name a run; a run has started from one of its checkpoints.
    of_runs = {_BRANCHED: [run.origin for run in runs], "best checkpoint": [run.best for run in runs]}
    columns: dict[str, Sequence[str]] = {
        name: [cell or "-" for cell in cells] for name, cells in of_runs.items() if any(cells)
    }
    for name, cells in among([run.side for run in runs]).items():
        columns.setdefault(name, cells)
    return columns


def _key(run: Listed, sort: str) -> tuple[float, str]:
    worst = float("inf")
    loss, speed = run.last("loss"), run.last("tokens_per_second")
    values = {
        "name": 0.0,
        "loss": worst if loss is None else loss,
        "step": -run.step,
        "speed": worst if speed is None else -speed,
    }
    return values[sort], run.name


def _cells(run: Listed) -> tuple[str, ...]:
    loss, speed = run.last("loss"), run.last("tokens_per_second")
    return (
        run.name,
        run.state,
        f"{run.step}/{run.side.graph.num_steps}",
        "-" if loss is None else f"{loss:.4f}",
        "-" if speed is None else tokens_per_second(speed).text.removesuffix(" tokens/s"),
    )


def _folders(directory: Path) -> Iterator[Path]:
    """Every run directory below a directory, or itself, by name."""
    for folder, names, files in os.walk(directory):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _INSIDE)
        if PLAN_NAME in files:
            yield Path(folder)
