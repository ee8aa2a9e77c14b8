"""What the commands share: the arguments that name a plan, and how findings reach the terminal."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from planc.api import NO_FILE, Checked, check_plan
from planc.cli.support.exits import CLEAN, COULD_NOT_RUN, FINDINGS, UsageError
from planc.cli.support.settings import SIZE_VARIABLES, settings_from, unknown_variables
from planc.diagnostics import Code, Diagnostic, Severity
from planc.diagnostics.human import HumanRenderer
from planc.diagnostics.machine import render_concise
from planc.source import SourceFile


def add_set_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="give a parameter, a setting (mesh.tp=4) or one argument of a setting's call "
        "(optimizer.kind.lr=2e-3) another value; can be repeated",
    )


def add_gpu_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--gpu",
        dest="set",
        action="append",
        type=lambda name: f"hardware.gpu={name}",
        metavar="NAME",
        help="the device to hold the plan against, h100 say: short for --set hardware.gpu=NAME",
    )


def add_world_size_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--world-size", type=_world_size, metavar="N", help="check against a launch on N ranks"
    )


def _world_size(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)


def settings(arguments: Namespace) -> tuple[SourceFile, ...]:
    """The sources of `--set` and of the environment, said on stderr. UsageError for a malformed size."""
    for name in unknown_variables(os.environ):
        print(f"planc: warning: nothing reads the environment variable {name}", file=sys.stderr)
    sources, errors = settings_from(arguments.set, os.environ)
    if errors:
        raise UsageError("; ".join(errors))
    for source in sources:
        if source.name in dict(SIZE_VARIABLES):
            print(f"planc: {source.name} in the environment sets {source.text}", file=sys.stderr)
    return sources


def check(path: str, *, settings: Sequence[SourceFile], world_size: int | None = None) -> Checked:
    """The plan at `path`, checked with the settings of the command line."""
    return check_plan(Path(path), settings=settings, world_size=world_size, on_probe=announce_probe)


def announce_probe(model_dir: Path) -> None:
    """Prints what is being waited for, as a model is read for the first time."""
    print(f"planc: reading the structure of {model_dir}: once, then it is kept", file=sys.stderr, flush=True)


def require_sound(checked: Checked, *, but: Sequence[Code] = ()) -> int | None:
    """None for a plan without errors other than `but`; else the exit code.

    Errors go to stderr in full, all else in a line each: `check` is where warnings are read.
    """
    sys.stderr.write(render_errors(checked, stream=sys.stderr))
    return exit_code(one for one in checked.diagnostics if one.code not in but) or None


def exit_code(diagnostics: Iterable[Diagnostic]) -> int:
    """2 where a file could not be read, 1 for errors, else 0."""
    errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity is Severity.ERROR]
    if any(diagnostic.code is NO_FILE for diagnostic in errors):
        return COULD_NOT_RUN
    return FINDINGS if errors else CLEAN


def render_findings(checked: Checked, *, stream: TextIO) -> str:
    """The findings as a person reads them on `stream`, a blank line at the end; empty without any."""
    if not checked.diagnostics:
        return ""
    renderer = HumanRenderer(
        checked.sources,
        colour=wants_colour(stream),
        width=terminal_width(stream),
        encoding=stream.encoding,
    )
    return renderer.render(checked.diagnostics) + "\n"


def render_errors(checked: Checked, *, stream: TextIO) -> str:
    """As `render_findings`, with a line alone for each finding that is not an error."""
    errors = tuple(one for one in checked.diagnostics if one.severity is Severity.ERROR)
    others = [one for one in checked.diagnostics if one.severity is not Severity.ERROR]
    text = render_findings(replace(checked, diagnostics=errors), stream=stream) if errors else ""
    return text + render_concise(others)


def findings(number: int) -> str:
    """`1 finding`, `2 findings`."""
    return f"{number} finding{'s' if number != 1 else ''}"


def terminal_width(stream: TextIO) -> int | None:
    """The cells of a terminal's line: `$COLUMNS`, else what it says itself. None for what is no terminal."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if re.fullmatch("[1-9][0-9]{0,4}", columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:  # a terminal that does not know
        return None


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can show colour and whose owner has not declined it
    (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
