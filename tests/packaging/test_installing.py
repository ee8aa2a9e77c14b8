"""What planc imports is declared, and the lines that install it mean what they say in a shell."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

OWN_NAMES = {"PIL": "pillow", "yaml": "pyyaml"}
"""Packages whose name is not what one imports."""
BROUGHT_ALONG = {"pygments": "rich", "lsprotocol": "pygls", "cattrs": "pygls", "pydantic_core": "pydantic"}
"""Libraries that planc imports for what another library does with them, and that library."""

PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
IN_PAGES = [
    pytest.param(line.removeprefix("$ "), id=f"{page}: {line}")
    for page in PAGES
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
    if line.startswith("$ pip install")
]
IN_MESSAGES = [
    pytest.param(found, id=f"{path.stem}: {found}")
    for path in sorted((ROOT / "planc").rglob("*"))
    if path.suffix in (".py", ".md")
    for found in re.findall(r"pip install '[^'{}]+'", path.read_text(encoding="utf-8"))
]


def name_of(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return match[0].lower().replace("_", "-")


def imported() -> set[str]:
    """The libraries that any file of planc imports."""
    found: set[str] = set()
    for path in (ROOT / "planc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                case ast.ImportFrom(module=str(module)):
                    found.add(module.partition(".")[0])
    return found - {*sys.stdlib_module_names, "planc"}


def test_every_library_that_is_imported_is_declared() -> None:
    declared = {name_of(one) for ones in (PROJECT["dependencies"], *EXTRAS.values()) for one in ones}
    needed = imported() - BROUGHT_ALONG.keys()
    assert {OWN_NAMES.get(one, one).replace("_", "-") for one in needed} - declared == set()


@pytest.mark.parametrize(("library", "by"), BROUGHT_ALONG.items())
def test_what_another_library_brings_along_is_of_its_requirements(library: str, by: str) -> None:
    assert library.replace("_", "-") in {name_of(one) for one in metadata.requires(by) or ()}


@pytest.mark.parametrize("line", [*IN_PAGES, *IN_MESSAGES])
def test_a_line_that_installs_names_what_is_there(line: str) -> None:
    """Unquoted, `>` would write a file and `[run]` would be a pattern of file names."""
    words = list(shlex.shlex(line, punctuation_chars=True))
    assert not {"<", ">", "[", "]", "|", "&", ";"} & set("".join(word for word in words if word[0] != "'"))
    arguments = shlex.split(line)[2:]
    for option, value in pairwise(arguments):
        assert option != "-c" or (ROOT / value).is_file()
    for extra in re.findall(r"\[(\w+)\]", " ".join(arguments)):
        assert extra in EXTRAS
