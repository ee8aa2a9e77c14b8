"""Questions, findings by flag and notes of `planc new`, on what the run of a first plan needs.

Questions are asked on stderr: stdout stays the command's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from planc.api import Checked
from planc.cli.support.data_files import DataFiles
from planc.cli.support.exits import UsageError
from planc.cli.support.shipped import NamedModel
from planc.diagnostics import Diagnostic, Severity
from planc.first_plan.brief import Brief
from planc.plan.facts import tokens_per_step
from planc.source import SourceFile


def missing_files(model: NamedModel, brief: Brief, tokenizer: Path | None, data: DataFiles) -> Iterator[str]:
    """Yield what a run needs that is not there yet."""
    if not brief.purpose.has_new_weights and not model.has_weights():
        yield f"{model.files} has no .safetensors: a run reads the weights from there"
    if tokenizer is not None and not tokenizer.exists():
        yield f"there is no {tokenizer}: copy the model's tokenizer there"
    if not data.num_files and "(" in data.call and not data.call.startswith("python_stdlib"):
        yield f"no file matches {data.call}: put data there"


def ignored_texts(data: DataFiles) -> Iterator[str]:
    """The texts of rows that the source ignores, such as negatives of an embedding."""
    if data.ignored:
        names = ", ".join(f"`{key}`" for key in data.ignored)
        verb = "is" if len(data.ignored) == 1 else "are"
        yield f"{names} of the rows {verb} not trained on: the source reads no such text, and ignores it"


def scarce_data(checked: Checked, brief: Brief, data: DataFiles) -> Iterator[str]:
    """A step that takes more than the data have."""
    if checked.bound is None or not data.num_files:
        return
    plan = checked.bound.plan
    tokens = data.size.tokens(brief.purpose, plan.data.sequence_length)
    wanted = tokens_per_step(plan)
    if tokens < wanted:
        yield (
            f"{data.call} has about {tokens:_} tokens, and a step takes {wanted:_}: sequences repeat within "
            "a step; --tokens-per-step takes fewer"
        )


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


_Value = TypeVar("_Value")


def can_ask() -> bool:
    """Whether a person can see a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, read: Callable[[str], _Value], *, default: str) -> _Value:
    """Ask until `read` takes the answer; an empty one is the default.

    `read` raises ValueError with the reason for an answer that makes no sense. UsageError at the input's end.
    """
    while True:
        sys.stderr.write(f"{question} [{default}] ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            sys.stderr.write("\n")
            raise UsageError("the input ended before all questions were answered")
        try:
            return read(line.strip() or default)
        except ValueError as error:
            sys.stderr.write(f"  {error}\n")
