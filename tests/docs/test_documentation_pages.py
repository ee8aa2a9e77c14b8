"""Every page: its plans check, its sessions print what they show, its other blocks are what they say."""

from __future__ import annotations

import ast as python
import json
import shlex
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from planc.api import check_plan
from planc.cli.main import COMMANDS, command_parsers
from planc.fmt.format import format_source
from planc.source import SourceFile
from tests.docs.pages import ROOT, Block, blocks, entries, written_pages
from tests.docs.prepare import prepare
from tests.docs.sessions import run_session, workspace
from tests.slow import slow_except

PAGES = written_pages()
TOUR = ROOT / "docs" / "concepts" / "tour.md"
"""Its plans belong together: test_tour.py."""

NOT_RUN = "not-run: "
REASONS = {
    "needs GPUs": 1,
    "needs a Kubernetes cluster": 1,
    "needs a Slurm cluster": 1,
    "needs a container builder": 1,
    "needs several machines": 1,
    "needs the network": 8,
    "run by .ci/run": 2,
}
"""Why a session is not run here, and how many blocks may say so."""


def runs(block: Block) -> bool:
    return not block.rest.startswith(NOT_RUN)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


LONG = (
    # All of it is `make quickstart`, which CI runs.
    "docs/start/quickstart.md",
    "docs/start/first-plan.md",
    "docs/how-to/debug.md",
    "docs/how-to/pretrained-weights.md",
    "docs/how-to/resume-on-another-mesh.md",
    "docs/how-to/review-in-ci.md",
    "docs/how-to/sweeps.md",
    "docs/how-to/train-a-model-of-your-own.md",
    "docs/how-to/train-with-your-own-loss.md",
    "docs/how-to/train-adapters.md",
    "docs/how-to/train-on-preferences.md",
    "docs/how-to/distill-a-model.md",
    "docs/reference/python.md",
)


QUICK = tuple(name_of(page) for page in PAGES if name_of(page) not in LONG)


def sessions() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.kind == "console"]


@pytest.mark.sampled(every=3)
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("page", slow_except(PAGES, *QUICK, name=name_of), ids=name_of)
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """With --update-goldens what commands print is written into the page."""
    workspace(tmp_path)
    wrong: list[tuple[Block, str]] = []
    is_updated: bool = request.config.getoption("--update-goldens")
    try:
        for block in blocks(page):
            run_block(block, tmp_path, wrong, is_updated=is_updated)
    finally:
        if wrong and is_updated:
            rewrite(page, wrong)
    for block, text in wrong:
        assert text == block.text, f"{block.place} prints something else; see --update-goldens"


def run_block(
    block: Block, folder: Path, wrong: list[tuple[Block, str]], *, is_updated: bool = False
) -> None:
    """Runs a block, and adds it to `wrong` with what it prints where that is something else."""
    match block.kind:
        case "plan" if block.path != TOUR:
            write_plan(block, folder)
        case "hidden":
            for command in block.text.splitlines():
                prepare(command, folder)
        case "console" if runs(block):
            text = run_session(block, folder, is_updated=is_updated)
            if text != block.text:
                wrong.append((block, text))
        case "console" | "plan":
            pass
        case _ if "." in block.rest:
            (folder / block.rest).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.rest).write_text(block.text)


def rewrite(page: Path, wrong: list[tuple[Block, str]]) -> None:
    source = page.read_text(encoding="utf-8")
    for block, text in reversed(wrong):
        source = source[: block.start] + text + source[block.start + len(block.text) :]
    page.write_text(source, encoding="utf-8", newline="\n")


def write_plan(block: Block, folder: Path) -> None:
    """Writes a plan under its name, and checks it: "```plan x.plan" is sound, "P402" after the name is found.

    `append` adds it to the file; `part`, or a name under presets/, is no whole plan.
    """
    name, *options = block.rest.split()
    assert name.endswith(".plan"), f"{block.place}: a plan has a name"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    before = f"{path.read_text()}\n" if "append" in options else ""
    path.write_text(before + block.text)
    found, _ = format_source(SourceFile(name, block.text))
    assert found == block.text, f"{block.place} is not laid out as fmt does"
    if "part" in options or name.startswith("presets/"):
        return
    codes = [option for option in options if option != "append"]
    assert sorted({one.code.code for one in check_plan(path).diagnostics}) == codes, block.place


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_of_a_kind_that_is_tested(page: Path) -> None:
    """What a reader could run must not hide in a block of text."""
    for block in blocks(page):
        assert block.kind in KINDS or block.kind.startswith("{"), f"{block.place}: {block.kind}"
        if block.kind == "text":
            assert not block.text.startswith(("$ ", "planc ", "torchrun ", "make ")), block.place


KINDS = (
    "plan",
    "console",
    "hidden",
    "python",
    "yaml",
    "json",
    "text",
    "dockerfile",
    "toml",
    "lua",
    "sh",
    "mermaid",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_of_data_and_code_read(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "yaml":
            yaml.safe_load(block.text)
        elif block.kind == "json":
            json.loads(block.text)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "python":
            imports_exist(block)


def imports_exist(block: Block) -> None:
    if find_spec("torch") is None:
        return
    for node in python.walk(python.parse(block.text)):
        match node:
            case python.ImportFrom(module=str(module), names=names):
                assert [one.name for one in names if not hasattr(import_module(module), one.name)] == []
            case python.Import(names=names):
                assert all(import_module(one.name) for one in names)


def test_sessions_that_do_not_run_say_why() -> None:
    """The list of what no test runs."""
    reasons = [block.rest.removeprefix(NOT_RUN) for block in sessions() if not runs(block)]
    assert {reason: reasons.count(reason) for reason in reasons} == REASONS


def test_commands_that_do_not_run_have_options_that_exist() -> None:
    parsers = {command.name: parser for command, parser in command_parsers()}
    for block in sessions():
        if runs(block):
            continue
        for entry in entries(block.text):
            words = shlex.split(entry.command.replace("\\\n", " "), comments=True)
            if words[:1] == ["planc"] and words[1] in parsers:
                parsers[words[1]].parse_args(words[2 : words.index(">") if ">" in words else None])


def test_every_command_is_shown_somewhere() -> None:
    shown = " ".join(entry.command for block in sessions() for entry in entries(block.text))
    assert [command.name for command in COMMANDS if f"planc {command.name}" not in shown] == []
