"""Fits text to a stream: its width and its colors.

A pipe gets the text unchanged, with one line per row of a table.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TextIO

from planc.diagnostics.wrap import num_cells, wrap

COLOR_CHOICES = ("auto", "always", "never")
_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE")


def terminal_width(stream: TextIO) -> int | None:
    """The columns of a terminal: `$COLUMNS`, else the terminal's own answer. None for a pipe or a file."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if re.fullmatch("[1-9][0-9]{0,4}", columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:  # a terminal without a known size
        return None


def wants_color(stream: TextIO) -> bool:
    """Whether to color a stream: NO_COLOR, then FORCE_COLOR and CLICOLOR_FORCE, then isatty and TERM.

    https://no-color.org, https://force-color.org, https://bixense.com/clicolors
    """
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def color_choice(choice: str) -> Iterator[None]:
    """Apply `--color` until the block ends, as the variables that rich and child processes read too."""
    if choice == "auto":
        yield
        return
    before = {name: os.environ.pop(name, None) for name in _VARIABLES}
    os.environ["FORCE_COLOR" if choice == "always" else "NO_COLOR"] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


_MIN_LAST_CELLS = 24
"""The least width of a table's last column; a narrower one gets its own lines."""
_HANGING = 4
_CODE = re.compile(r"\033\[[0-9;]*m")
_HEADING = re.compile(r"[A-Z]{4,}[A-Z ,]*\b")
_ROW = re.compile(r"(  )(\S+(?: \S+)*)(  .*)")
_TABLE_ROW = re.compile(r"(\S+(?: \S+)*)(  .*)")
_LABEL = re.compile(r"[a-z]+: ")
_STATUSES = {"ok": "32", "warning": "33", "error": "31"}
_VERDICTS = {"fits": "32", "may run out": "33", "does not fit": "31"}
_VERDICT = re.compile(rf"  on [^:]+: ({'|'.join(_VERDICTS)})\b")


def write_view(text: str, *, stream: TextIO) -> None:
    """Write a view with aligned columns to a stream, fitted to a terminal and colored if wanted."""
    lines = text.splitlines()
    if wants_color(stream):
        starts = (True, *(not line for line in lines))
        lines = [_painted(line, is_first=start) for line, start in zip(lines, starts, strict=False)]
    write_fitted("\n".join(lines), stream=stream)


def write_fitted(text: str, *, stream: TextIO) -> None:
    """Write text to a stream, broken into lines that fit if that is a terminal."""
    width = terminal_width(stream)
    lines: Iterator[str] = iter(text.splitlines())
    if width is not None:
        lines = (part for line in lines for part in fitted(line, width=width))
    stream.write("".join(f"{line}\n" for line in lines))


def fitted(line: str, *, width: int) -> Iterator[str]:
    """Break a line into parts of at most `width` cells; its last column continues below itself.

    A last column with too little room gets its own lines. A word that is too long is not broken.
    """
    if _num_cells(line) <= width:
        yield line
        return
    indent = len(line) - len(line.lstrip(" "))
    start = indent + line[indent:].rfind("  ") + 2
    if "  " not in line[indent:]:  # prose
        start, hanging, before = indent, indent + (_HANGING if indent else 0), line[:indent]
    elif width - _num_cells(line[:start]) >= _MIN_LAST_CELLS:
        hanging, before = _num_cells(line[:start]), line[:start]
    else:
        yield from fitted(line[:start].rstrip(), width=width)
        hanging = indent + _HANGING
        before = " " * hanging
    for part in wrap(line[start:], cells=max(_MIN_LAST_CELLS, width - hanging)):
        yield f"{before}{part}"
        before = " " * hanging


def _painted(line: str, *, is_first: bool) -> str:
    """Color a line: a heading bold, the first cell of a row cyan, a verdict or status by its meaning.

    `is_first` is true at the top and after a blank line, where a table has its header.
    """
    if heading := _HEADING.match(line):
        return _colored(heading[0], "1") + line[heading.end() :]
    if verdict := _VERDICT.match(line):
        start, end = verdict.span(1)
        return line[:start] + _colored(verdict[1], f"1;{_VERDICTS[verdict[1]]}") + line[end:]
    if row := _ROW.fullmatch(line):
        return f"{row[1]}{_colored(row[2], '36')}{row[3]}"
    if label := _LABEL.match(line):
        return _colored(label[0], "1") + line[label.end() :]
    if table := _TABLE_ROW.fullmatch(line):
        code = _STATUSES.get(table[1], "36")
        return _colored(line, "1") if is_first and code == "36" else _colored(table[1], code) + table[2]
    return _colored(line, "1") if line.endswith(" { ... }") else line


def _num_cells(line: str) -> int:
    return num_cells(_CODE.sub("", line))


def _colored(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m"
