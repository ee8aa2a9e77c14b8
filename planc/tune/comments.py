"""The comments of a plan, for the blocks of it that a search keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planc.fmt.format import format_source
from planc.source import SourceFile

Comments = Mapping[str, tuple[str, ...]]
"""Lines of comments by the start of the statement below them; by nothing for the block's own."""

_HEADER = re.compile(r"(\w+)[^\n]*\{$")
_OWN = ("# Written by planc new", "# Found by planc tune")
"""The start of planc's own comment on a whole plan, which another choice makes untrue."""


def comments_of(source: SourceFile) -> Mapping[str, Comments]:
    """The comments of a plan's own file by block; none of a file that does not parse."""
    text, _ = format_source(source)
    blocks: dict[str, dict[str, tuple[str, ...]]] = {}
    kind, pending = "", list[str]()
    for line in (text or "").splitlines():
        statement = line.strip()
        if statement.startswith("#"):
            pending.append(statement)
            continue
        statement, _, after = statement.partition("  # ")
        if after:
            pending.append(f"# {after}")
        header = _HEADER.match(line)
        if header:
            kind = header.group(1)
        if pending and kind and not _is_own(pending):
            blocks.setdefault(kind, {})["" if header else _start(statement)] = tuple(pending)
        if statement or _is_own(pending):
            pending = []
        if line == "}":
            kind = ""
    return blocks


def commented(text: str, comments: Comments) -> str:
    """A block's text with its comments; those without their statement come first."""
    header, *lines = text.splitlines()
    starts = {_start(line.strip()) for line in lines}
    above = [line for start, texts in comments.items() if start not in starts for line in texts]
    body: list[str] = []
    for line in lines:
        body += [
            f"  {comment}" for comment in comments.get(_start(line.strip()), ()) if line.startswith("  ")
        ]
        body.append(line)
    return "\n".join((*above, header, *body)) + "\n"


def _start(statement: str) -> str:
    """Return what tells a statement of a block from others: the name of a setting, or a rule's patterns."""
    return re.split(r" = | -> | \{", statement, maxsplit=1)[0].removeprefix("override ")


def _is_own(comments: list[str]) -> bool:
    return bool(comments) and comments[0].startswith(_OWN)
