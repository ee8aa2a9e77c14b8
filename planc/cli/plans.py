"""What the commands share: the arguments that name a plan, and how findings reach the terminal."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from planc.api import NO_FILE, Checked, check_plan
from planc.cli.exits import CLEAN, COULD_NOT_RUN, FINDINGS, UsageError
from planc.cli.settings import SIZE_VARIABLES, settings_from, unknown_variables
from planc.diagnostics import Diagnostic, Severity
from planc.diagnostics.human import HumanRenderer
from planc.source import SourceFile


def add_set_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="give a parameter or a setting another value (mesh.tp=4); again for more",
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
    return check_plan(Path(path), settings=settings, world_size=world_size)


def require_sound(checked: Checked) -> int | None:
    """None for a plan without errors; else the exit code, after its findings went to stderr."""
    if checked.diagnostics:
        sys.stderr.write(render_findings(checked, colour=wants_colour(sys.stderr)))
    return None if checked.ok else exit_code(checked.diagnostics)


def exit_code(diagnostics: Iterable[Diagnostic]) -> int:
    """2 where a file could not be read, 1 for errors, else 0."""
    errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity is Severity.ERROR]
    if any(diagnostic.code is NO_FILE for diagnostic in errors):
        return COULD_NOT_RUN
    return FINDINGS if errors else CLEAN


def render_findings(checked: Checked, *, colour: bool) -> str:
    """The findings as a person reads them, a blank line at the end; empty without any."""
    if not checked.diagnostics:
        return ""
    return HumanRenderer(checked.sources, colour=colour).render(checked.diagnostics) + "\n"


def wants_colour(stream: object) -> bool:
    """Whether a stream is a terminal whose owner has not declined colour (https://no-color.org)."""
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR")
