"""What the documents hold that can run: the fenced blocks of a page, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.generate import GENERATED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1$|^<!-- run\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: "```console exit=1" has the kind `console` and the rest `exit=1`.

    The kind `hidden` is a comment `<!-- run ... -->`: commands that a reader need not see.
    """

    path: Path
    line: int
    kind: str
    rest: str
    text: str
    start: int
    """Where the text begins in the page."""

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def written_pages() -> tuple[Path, ...]:
    """Every document that people write: README, CONTRIBUTING, and `docs/` without what is generated."""
    made = tuple(f"{DOCS / name}" for name in GENERATED)
    pages = (page for page in sorted(DOCS.rglob("*.md")) if not str(page).startswith(made))
    return (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for page in pages if "_build" not in page.parts),
    )


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = path.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match[4] is not None:
            yield Block(path, line, "hidden", "", match[4], match.start(4))
            continue
        kind, _, rest = match[2].strip().partition(" ")
        yield Block(path, line, kind, rest.strip(), match[3], match.start(3))


def inline_code(path: Path) -> Iterator[str]:
    """The code spans of a page's prose, without line breaks."""
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for match in _INLINE.finditer(prose):
        yield " ".join(match[1].split())


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of a session, and what is shown of its output."""

    command: str
    shown: str


def entries(text: str) -> tuple[Entry, ...]:
    """The commands of a session: `$ command`, which a `\\` at its end continues, then its output."""
    found: list[Entry] = []
    lines = text.splitlines(keepends=True)
    while lines:
        first = lines.pop(0)
        assert first.startswith("$ "), f"a session begins with `$ `: {first}"
        command = first[2:]
        while command.endswith("\\\n") or _is_open(command):
            command += lines.pop(0)
        shown = ""
        while lines and not lines[0].startswith("$ "):
            shown += lines.pop(0)
        found.append(Entry(command.rstrip("\n"), shown))
    return tuple(found)


def _is_open(command: str) -> bool:
    """Whether a here-document is not at its end yet."""
    begun = re.search(r"<<'?(\w+)'?", command)
    return begun is not None and not re.search(rf"^{begun[1]}$", command, re.MULTILINE)
