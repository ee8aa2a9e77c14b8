"""Commands on pages that only read plans: those of every page, in seconds, in the quick suite.

Most pages run whole in the slow tests only (`make test-docs`). What changes most often is what a command
prints of a plan, and these find that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import Block, Entry, blocks, entries, written_pages
from tests.docs.prepare import prepare
from tests.docs.sessions import fits, run, trimmed, workspace
from tests.docs.test_documentation_pages import TOUR, name_of, runs

COMMANDS = ("check", "show", "diff", "estimate", "explain", "fmt", "import", "schema", "launch")
_NEEDS_MORE = re.compile(r"--deep|--data|--run-extensions|[|<>&;$*]|\bruns/|\bgit:")
"""Options that run code, a shell, and what a run or git has left."""
_WITH_TORCH = ("prepare weights", "prepare nan-weights", "prepare chat-model")
LEFT_OUT = {
    "docs/how-to/fine-tune-on-chats.md": "torch writes its weights",
    "docs/how-to/mix-sources.md": "its data come from a command",
    "docs/how-to/pretrained-weights.md": "torch writes its weights",
    "docs/how-to/train-a-model-of-your-own.md": "an edit by sed makes its plan wrong",
    "docs/how-to/train-with-your-own-loss.md": "its code comes from a command",
}


def is_quick(entry: Entry) -> bool:
    program, _, rest = entry.command.partition(" ")
    return program == "planc" and rest.split()[0] in COMMANDS and not _NEEDS_MORE.search(rest)


def quick_pages() -> Iterator[Path]:
    for page in written_pages():
        sessions = (block for block in blocks(page) if block.kind == "console" and runs(block))
        if any(is_quick(entry) for block in sessions for entry in entries(block.text)):
            yield page


ALL_PAGES = tuple(quick_pages())
PAGES = tuple(page for page in ALL_PAGES if name_of(page) not in LEFT_OUT)


def test_pages_that_are_left_out_have_such_commands() -> None:
    assert set(LEFT_OUT) <= {name_of(page) for page in ALL_PAGES}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_only_read_plans_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    workspace(tmp_path)
    num_run = 0
    for block in blocks(page):
        if block.kind == "console" and runs(block):
            num_run += sum(shows(block, entry, tmp_path) for entry in entries(block.text) if is_quick(entry))
        elif block.kind == "hidden":
            for command in block.text.splitlines():
                if not command.startswith(_WITH_TORCH):
                    prepare(command, tmp_path)
        elif "." in block.rest and block.kind != "console" and block.path != TOUR:
            write(block, tmp_path)
    assert num_run > 0


def shows(block: Block, entry: Entry, folder: Path) -> bool:
    """Whether the command's files exist without what other commands write; then it prints what is shown."""
    files = (word for word in entry.command.split() if word.endswith((".plan", ".json", ".yaml")))
    if not all((folder / name).exists() for name in files):
        return False
    printed, code = run(entry.command, folder)
    is_last = entry == entries(block.text)[-1]
    wanted = int(block.rest.removeprefix("exit=") or 0) if is_last else 0
    assert (code, fits(entry.shown, trimmed(printed))) == (wanted, True), f"{block.place}:\n{printed}"
    return True


def write(block: Block, folder: Path) -> None:
    name, *options = block.rest.split()
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    before = f"{path.read_text()}\n" if "append" in options else ""
    path.write_text(before + block.text)
