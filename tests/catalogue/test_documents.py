"""The page of the source documents is what its rows make of it, and names what is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.api import check_source
from planc.cli.main import COMMANDS, command_parsers
from planc.cli.support.parser import subcommands
from planc.diagnostics.pages import pages
from planc.show.reference import topics
from planc.source import SourceFile
from tests.catalogue.declared import HERE, ROOT, exists
from tests.catalogue.documents import Row, State, page, rows
from tests.docs.sessions import run, workspace
from tests.plans import FULL, PLANS

FIRST, LAST = 1, 166
"""Rows of the documents from what they need to run to what they promise: all."""

COMMANDS_SHOWN = [command for row in rows() for command in row.commands]
REFUSALS = {
    "planc check plans/quickstart.plan --world-size 3": 1,
    "planc run plans/launch-tp4.plan": 2,
}
"""The exit codes of commands that show a refusal."""


def _trains(command: str) -> bool:
    """Whether a command trains, or reads what a run has written."""
    return command.startswith(("torchrun", "planc run", "planc verify")) or " RUN" in command


def test_the_page_is_what_the_rows_make(match_golden: Callable[[Path, str], None]) -> None:
    match_golden(HERE / "DOCUMENTS.md", page())


def test_every_row_is_there_once_in_order() -> None:
    assert [row.number for row in rows()] == list(range(FIRST, LAST + 1))


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.number))
def test_every_test_that_a_row_names_is_there(row: Row) -> None:
    assert row.missing == ()


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.number))
def test_a_row_has_what_its_state_takes(row: Row) -> None:
    if row.state is State.DONE:
        assert row.tests, "what is done is shown by a test"
    else:
        assert row.note, "what is not done is explained"


@pytest.mark.parametrize("command", COMMANDS_SHOWN)
def test_every_command_that_a_row_names_is_planc_s(command: str) -> None:
    words = command.split()
    assert words[0] in ("planc", "torchrun")
    named = [word for word in words if word.endswith(".plan")]
    assert [word for word in named if not (ROOT / word).is_file()] == []
    if words[0] == "torchrun":
        assert "-m planc.run" in command or command.split()[4].startswith("examples/")
        return
    parsers = {one.name: parser for one, parser in command_parsers()}
    assert words[1] in {one.name for one in COMMANDS}
    parser = parsers[words[1]]
    if parts := subcommands(parser):
        assert words[2] in parts
        parser = parts[words[2]]
    options = parser._option_string_actions
    assert [word for word in words if re.match("--?[a-z]", word) and word not in options] == []
    if words[1] == "explain":
        assert words[2] in {*pages(), *(name for names in topics().values() for name in names)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace(tmp_path_factory.mktemp("documents"))


@pytest.mark.parametrize("command", [one for one in dict.fromkeys(COMMANDS_SHOWN) if not _trains(one)])
def test_a_rows_command_ends_as_the_row_says(command: str, folder: Path) -> None:
    printed, code = run(command, folder)
    assert code == REFUSALS.get(command, 0), printed[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in dict.fromkeys(COMMANDS_SHOWN) if _trains(one)])
def test_a_rows_run_ends_as_the_row_says(command: str, folder: Path) -> None:
    if " RUN" in command and not (folder / "RUN").exists():
        saving = "torchrun --standalone --nproc-per-node 4 -m planc.run plans/quickstart.plan --run-dir RUN"
        printed, code = run(f"{saving} --set train.steps=12", folder)
        assert code == 0, printed[-2000:]
    steps = "" if " RUN" in command or command.startswith("planc verify") else " --set train.steps=12"
    printed, code = run(f"{command}{steps}", folder)
    assert code == REFUSALS.get(command, 0), printed[-2000:]


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        pytest.param("fsdp.engine=deepspeed", "P215", id="DeepSpeed"),
        pytest.param("data.num_proc=60", "P215", id="num_proc"),
        pytest.param("mesh.backend=xla", "P207", id="XLA"),
        pytest.param("model.config=32", "P215", id="a field of the config"),
        pytest.param("tensor_parallel.lint_and_recompile=true", "P215", id="a flag of a pass"),
        pytest.param("tensor_parallel.decompose=true", "P215", id="a decomposition"),
    ],
)
def test_what_the_language_has_no_words_for_is_refused(setting: str, code: str) -> None:
    plain = check_source(SourceFile("x.plan", FULL), base=PLANS)
    assert plain.ok
    asked = check_source(SourceFile("x.plan", FULL), base=PLANS, settings=[SourceFile("--set", setting)])
    assert [one.code.code for one in asked.diagnostics] == [code]


def test_a_test_that_is_gone_is_noticed() -> None:
    gone = Row(0, "", State.DONE, (), ("launch/test_launch.py::a_test_that_never_was",), "")
    assert gone.missing == gone.tests
    assert not exists("tests/launch/no_such_file.py::test_x")
