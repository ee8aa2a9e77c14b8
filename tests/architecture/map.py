"""Print the map of planc's packages: `python -m tests.architecture.map`.

One row a package, lowest first: its lines, what it holds (the first line of its docstring), and what it may
import. `--contributing` writes the table into CONTRIBUTING.md, without the lines.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.law import INSIDE, LAW

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
START, END = "<!-- map: python -m tests.architecture.map -->", "<!-- /map -->"


@dataclass(frozen=True)
class Room:
    """A package, or a module of planc's root."""

    name: str
    lines: int
    holds: str
    imports: tuple[str, ...]
    parts: tuple[str, ...]
    """Packages inside it."""


def summary(path: Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def line_count(path: Path) -> int:
    """The lines of a file, or of all Python files in a directory."""
    files = path.rglob("*.py") if path.is_dir() else (path,)
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def rooms() -> Iterator[Room]:
    """All that the import law names, lowest first."""
    for name, imports in LAW.items():
        yield _room(name, imports)


def rooms_inside(package: str) -> Iterator[Room]:
    """The rooms of a package with a law of its own, lowest first."""
    folder = package.replace(".", "/")
    for name, imports in INSIDE[package].items():
        yield _room(f"{folder}/{name}", imports)


def _room(name: str, imports: tuple[str, ...]) -> Room:
    package = ROOT / "planc" / name
    if not package.is_dir():
        module = package.with_suffix(".py")
        return Room(f"{name}.py", line_count(module), summary(module), imports, ())
    parts = tuple(sorted(init.parent.name for init in package.glob("*/__init__.py")))
    return Room(f"{name}/", line_count(package), summary(package / "__init__.py"), imports, parts)


def table() -> str:
    """The map as a Markdown table."""
    rows = ["| `planc/` | lines | what it holds | imports |", "|---|---:|---|---|"]
    for room in (*rooms(), *(room for package in INSIDE for room in rooms_inside(package))):
        inside = f" In it: {', '.join(f'`{part}`' for part in room.parts)}." if room.parts else ""
        imports = ", ".join(room.imports) or "nothing"
        rows.append(f"| `{room.name}` | {room.lines:,} | {room.holds}{inside} | {imports} |")
    return "\n".join(rows)


def contributing() -> str:
    """The import law as CONTRIBUTING.md has it: without lines, which change with every commit."""
    parts = [_law_table("package", rooms())]
    for package in INSIDE:
        path = package.replace(".", "/")
        parts += [f"Inside of `{path}/`, lowest first:", _law_table("room", rooms_inside(package))]
    return "\n\n".join(parts)


def _law_table(title: str, found: Iterable[Room]) -> str:
    rows = [f"| {title} | what it holds | imports |", "|---|---|---|"]
    rows += [f"| `{room.name}` | {room.holds} | {', '.join(room.imports) or 'nothing'} |" for room in found]
    return "\n".join(rows)


def with_law(text: str) -> str:
    """CONTRIBUTING.md with the law of today between its two marks."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{contributing()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--contributing"]:
        text = CONTRIBUTING.read_text(encoding="utf-8")
        CONTRIBUTING.write_text(with_law(text), encoding="utf-8", newline="\n")
    else:
        print(table())
