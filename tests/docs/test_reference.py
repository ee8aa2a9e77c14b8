"""REFERENCE.md is what the definitions make of it, and names all that there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from planc.cli.main import COMMANDS
from planc.cli.manual import reference
from planc.diagnostics.pages import pages
from planc.plan.blocks import setting_paths
from planc.show.reference import topics

ROOT = Path(__file__).parents[2]


def test_the_file_is_what_the_definitions_make(match_golden: Callable[[Path, str], None]) -> None:
    match_golden(ROOT / "REFERENCE.md", reference())


def test_every_topic_of_explain_is_there() -> None:
    text = reference()
    names = [name for group in topics().values() for name in group]
    assert [name for name in names if f"`{name}`" not in text and f"### {name}\n" not in text] == []


def test_every_setting_is_there() -> None:
    text = reference()
    assert [path for path in setting_paths() if f"| `{path.rpartition('.')[2]}` |" not in text] == []


def test_every_page_of_a_code_is_linked() -> None:
    linked = re.findall(r"\[(P\d+)\]\((\S+)\)", reference())
    assert [code for code, _ in linked] == list(pages())
    assert all((ROOT / path).is_file() for _, path in linked)


def test_every_command_has_a_section() -> None:
    headings = re.findall(r"^### planc (\S+)$", reference(), re.MULTILINE)
    assert headings == [command.name for command in COMMANDS]


def test_no_row_of_a_table_is_broken() -> None:
    for table in re.findall(r"(?:^ *\|.*\n)+", reference(), re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(widths) == 1, table
