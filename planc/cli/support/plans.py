"""Checks a plan with the command line's settings and prints its findings, for all commands."""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

from planc.api import NO_FILE, Checked, check_plan, check_source
from planc.capacity.draft import Draft
from planc.checks.run.does_not_fit import CODE as DOES_NOT_FIT
from planc.checks.run.expectation_broken import CODE as BROKEN
from planc.cli.support.count_sequences import count_known
from planc.cli.support.exits import CLEAN, COULD_NOT_RUN, FINDINGS, FaultyPlan, UsageError
from planc.cli.support.settings import SIZE_VARIABLES, settings_from, unknown_variables
from planc.cli.support.spinner import can_animate, spinner
from planc.cli.support.terminal import terminal_width, wants_color
from planc.diagnostics import Code, Diagnostic, Severity
from planc.diagnostics.human import HumanRenderer
from planc.diagnostics.machine import render_concise
from planc.source import SourceFile
from planc.syntax.codes import NOT_TEXT
from planc.tables import plural

_OF_FIGURES = (DOES_NOT_FIT, BROKEN)
"""Errors that people look at the figures for."""
STDIN_NAME = "<stdin>"
"""The name of a plan read from stdin, in findings."""


def settings(arguments: Namespace) -> tuple[SourceFile, ...]:
    """The sources of `--set` and of the environment; UsageError for a malformed size.

    Values from the environment are noted on stderr.
    """
    for name in unknown_variables(os.environ):
        print(f"planc: warning: unknown environment variable {name} (planc ignores it)", file=sys.stderr)
    sources, errors = settings_from(arguments.set, os.environ)
    if errors:
        raise UsageError("; ".join(errors))
    for source in sources:
        if source.name in dict(SIZE_VARIABLES) and not getattr(arguments, "quiet", False):
            print(f"planc: {source.name} in the environment sets {source.text}", file=sys.stderr)
    return sources


def check(
    path: str,
    *,
    settings: Sequence[SourceFile],
    world_size: int | None = None,
    is_quiet: bool = False,
    runs_extensions: bool = False,
) -> Checked:
    """Check the plan at `path` with the settings of the command line."""
    return check_plan(
        Path(path),
        settings=settings,
        world_size=world_size,
        on_probe=None if is_quiet else announce_probe,
        count=partial(count_known, runs_extensions=runs_extensions),
        runs_extensions=runs_extensions,
    )


def check_stdin(*, settings: Sequence[SourceFile], world_size: int | None, is_quiet: bool) -> Checked:
    """Check the plan on stdin; its relative paths start at the current directory."""
    source, problems = read_stdin()
    if source is None:
        return Checked({}, problems)
    on_probe = None if is_quiet else announce_probe
    return check_source(
        source,
        base=Path(),
        settings=settings,
        world_size=world_size,
        on_probe=on_probe,
        count=count_known,
    )


def read_stdin() -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
    """The text on stdin as a source named `<stdin>`, or why it can't be read."""
    content = sys.stdin.buffer.read()
    try:
        return SourceFile(STDIN_NAME, content.decode("utf-8").replace("\r\n", "\n")), ()
    except UnicodeDecodeError as error:
        nowhere = SourceFile(STDIN_NAME, "").start()
        return None, (NOT_TEXT.at(nowhere, f"byte {error.start} is not UTF-8", help="save it as UTF-8"),)


@contextlib.contextmanager
def announce_probe(model_dir: Path) -> Iterator[None]:
    """Show what is being waited for, while a model is read for the first time."""
    text = f"reading the structure of {model_dir} (once; the result is cached)"
    if not can_animate(sys.stderr):
        print(f"planc: {text}", file=sys.stderr, flush=True)
    with spinner(text, stream=sys.stderr):
        yield


def require_sound(checked: Checked, *, but: Sequence[Code] = ()) -> Draft:
    """Return the plan's lowering. FaultyPlan for one with errors other than `but`.

    Errors go to stderr in full, other findings in one line each; `check` prints those in full.
    """
    sys.stderr.write(render_errors(checked, stream=sys.stderr))
    return _draft(checked, but=but)


def require_figures(checked: Checked) -> Draft:
    """Return the lowering of a plan that has figures: its only errors are of what it needs or expects.

    `finish` then prints the findings. Otherwise, as `require_sound`.
    """
    try:
        return _draft(checked, but=_OF_FIGURES)
    except FaultyPlan:
        return require_sound(checked)


def _draft(checked: Checked, *, but: Sequence[Code]) -> Draft:
    code = exit_code(diagnostic for diagnostic in checked.diagnostics if diagnostic.code not in but)
    if code != CLEAN:
        raise FaultyPlan(code)
    assert checked.draft is not None, "only errors keep a plan from its draft"
    return checked.draft


def finish(checked: Checked) -> int:
    """Print the findings below the figures that they are about, and return the exit code."""
    sys.stdout.flush()
    sys.stderr.write(render_errors(checked, stream=sys.stderr))
    return exit_code(checked.diagnostics)


def exit_code(diagnostics: Iterable[Diagnostic]) -> int:
    """2 if a file could not be read, 1 for errors, else 0."""
    errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity is Severity.ERROR]
    if any(diagnostic.code is NO_FILE for diagnostic in errors):
        return COULD_NOT_RUN
    return FINDINGS if errors else CLEAN


def render_findings(checked: Checked, *, stream: TextIO) -> str:
    """Render findings for people, as `stream` can show them, with a blank line at the end; empty if none."""
    if not checked.diagnostics:
        return ""
    renderer = HumanRenderer(
        checked.sources,
        colour=wants_color(stream),
        width=terminal_width(stream),
        encoding=stream.encoding,
    )
    return renderer.render(checked.diagnostics) + "\n"


def render_errors(checked: Checked, *, stream: TextIO) -> str:
    """Render as `render_findings` does, with one line for each finding that is not an error."""
    errors = tuple(diagnostic for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR)
    others = [diagnostic for diagnostic in checked.diagnostics if diagnostic.severity is not Severity.ERROR]
    text = render_findings(replace(checked, diagnostics=errors), stream=stream) if errors else ""
    return text + render_concise(others)


def findings(number: int) -> str:
    """`1 finding`, `2 findings`."""
    return plural(number, "finding")
