"""Findings about a plan that no file holds: told without a place in it, and with the flag to change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from planc.api import Checked
from planc.diagnostics import Diagnostic, Severity
from planc.source import SourceFile

_KEY = re.compile(r"\s*(\w+) = ")


def findings_by_flag(checked: Checked, *, flags: Mapping[str, str]) -> str:
    """The errors of a plan, as text; `flags` are those that set a key of the plan, by the key."""
    errors = (diagnostic for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR)
    return "".join(f"{line}\n" for error in errors for line in _lines(error, checked, flags))


def _lines(error: Diagnostic, checked: Checked, flags: Mapping[str, str]) -> Iterator[str]:
    yield f"error[{error.code.code}]: {error.code.summary}"
    flag = flags.get(_key(error, checked))
    text = " ".join(error.primary.text.split())
    place = f"{flag}: " if flag else ""
    if text or place:
        yield f"  {place}{text}".removesuffix(": ")
    yield from (f"  {' '.join(text.split())}" for text in _more(error))
    if error.help:
        yield f"help: {_by_flags(error.help, flags)}  (planc explain {error.code.code})"


def _more(error: Diagnostic) -> Iterator[str]:
    yield from (label.text for label in error.secondary if label.text)
    yield from error.notes


def _key(error: Diagnostic, checked: Checked) -> str:
    """The key of the line that an error is about; empty where it is about none."""
    span = error.primary.span
    source: SourceFile | None = checked.sources.get(span.file)
    lines = source.text.splitlines() if source is not None else []
    found = _KEY.match(lines[span.line - 1]) if 0 < span.line <= len(lines) else None
    return found[1] if found else ""


def _by_flags(help: str, flags: Mapping[str, str]) -> str:
    for key, flag in flags.items():
        help = help.replace(f"`{key}`", flag)
    return help
