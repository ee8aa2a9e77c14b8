"""Text of a view as a terminal shows it: in lines that fit, with headings that stand out.

A pipe gets the text as it is: there a row of a table stays one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TextIO

from planc.cli.support import plans
from planc.diagnostics.visible import num_cells
from planc.diagnostics.wrap import wrap

_MIN_LAST_CELLS = 24
"""What the last column of a table has, or else continues on lines of its own."""
_HANGING = 4
_HEADING = re.compile(r"[A-Z]{4,}[A-Z ,]*\b")
_ROW = re.compile(r"(  )(\S+(?: \S+)*)(  .*)")
_VERDICTS = {"fits": "32", "may run out": "33", "does not fit": "31"}
_VERDICT = re.compile(rf"  on [^:]+: ({'|'.join(_VERDICTS)})\b")


def write_view(text: str, *, stream: TextIO) -> None:
    """Writes a view with aligned columns to a stream, fitted and colored where that is a terminal."""
    width, color = plans.terminal_width(stream), plans.wants_colour(stream)
    lines: Iterator[str] = iter(text.splitlines())
    if width is not None:
        lines = (part for line in lines for part in fitted(line, width=width))
    if color:
        lines = map(_painted, lines)
    stream.write("".join(f"{line}\n" for line in lines))


def fitted(line: str, *, width: int) -> Iterator[str]:
    """The line in parts of at most `width` cells: what stands in its last column continues below itself.

    Where too little room is left for that column, it has lines of its own. A word that is longer is not
    broken.
    """
    if num_cells(line) <= width:
        yield line
        return
    indent = len(line) - len(line.lstrip(" "))
    start = indent + line[indent:].rfind("  ") + 2
    if "  " not in line[indent:]:  # prose
        start, hanging, before = indent, indent + (_HANGING if indent else 0), line[:indent]
    elif width - start >= _MIN_LAST_CELLS:
        hanging, before = start, line[:start]
    else:
        yield from fitted(line[:start].rstrip(), width=width)
        hanging = indent + _HANGING
        before = " " * hanging
    for part in wrap(line[start:], cells=max(_MIN_LAST_CELLS, width - hanging)):
        yield f"{before}{part}"
        before = " " * hanging


def _painted(line: str) -> str:
    """Headings bold, the first cell of a row cyan, a verdict in its own color."""
    if heading := _HEADING.match(line):
        return _colored(heading[0], "1") + line[heading.end() :]
    if verdict := _VERDICT.match(line):
        start, end = verdict.span(1)
        return line[:start] + _colored(verdict[1], f"1;{_VERDICTS[verdict[1]]}") + line[end:]
    if row := _ROW.fullmatch(line):
        return f"{row[1]}{_colored(row[2], '36')}{row[3]}"
    return line


def _colored(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m"
