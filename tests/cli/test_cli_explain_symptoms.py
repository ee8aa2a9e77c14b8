"""`planc explain` by symptom: phrases find their pages, and the pages name what exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from planc.cli.main import command_parsers, main
from planc.cli.support.parser import subcommands
from planc.diagnostics.by_symptom import SYMPTOMS, symptom_named, symptom_page
from planc.plan.blocks import BLOCKS
from planc.show.reference import topics
from tests.docs.pages import inline_code

FOLDER = Path(__file__).parents[2] / "planc" / "diagnostics" / "symptoms"
PAGES = sorted(FOLDER.glob("*.md"))
_BLOCK = re.compile(r"(\w+)(?: on \w+)? \{ (.*) \}", re.DOTALL)
_KEY = re.compile(r"(?:^|, )(\w+) = ")


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("out of memory", "out of memory"),
        ("OOM", "out of memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out of memory"),
        ("nan", "nan"),
        ("my loss is NaN after a resume", "nan"),
        ("hang", "hang"),
        ("training hangs", "hang"),
        ("Watchdog caught collective operation timeout", "hang"),
        ("nodes lost", "lost node"),
        ("training is slow", "slow"),
        ("flash attention", "flash attention"),
        ("multi-node", "multi node"),
        ("several nodes", "multi node"),
        ("callbacks", "callback"),
        ("custom dataset", "custom dataset"),
        ("my own data", "custom dataset"),
        ("resume", "resume"),
        ("loss not falling", "loss not falling"),
        ("the loss doesn't fall", "loss not falling"),
        ("own_model", "own model"),
        ("how do I use my own loss", "own loss"),
        ("custom optimizer", "own loss"),
    ],
)
def test_a_symptom_is_found_as_people_write_it(
    topic: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *topic.split()]) == 0
    out = capsys.readouterr().out
    assert out == (FOLDER / f"{name.replace(' ', '-')}.md").read_text(encoding="utf-8")
    assert main(["explain", topic]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("topic", "near"),
    [
        ("out of memroy", "`out of memory`"),
        ("loss is falling", "`loss not falling`"),
        ("nan hang", "`nan` or `hang`"),
        ("P402 P403", "`P402` or `P403`"),
    ],
)
def test_a_topic_that_is_not_known_names_the_nearest(
    topic: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *topic.split()]) == 2
    assert f"unknown topic `{topic}`: did you mean {near}?" in capsys.readouterr().err


def test_symptoms_are_listed_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"symptoms and intentions: {', '.join(SYMPTOMS)}"


def test_each_page_is_of_a_symptom_and_short() -> None:
    assert {page.stem.replace("-", " ") for page in PAGES} == set(SYMPTOMS)
    for name in SYMPTOMS:
        lines = symptom_page(name).splitlines()
        assert lines[0] == f"# {name}" and 5 < len(lines) <= 25
        assert max(map(len, lines)) <= 120


def test_no_symptom_hides_a_block_an_op_a_style_or_a_command() -> None:
    names = [name for group in topics().values() for name in group]
    names += [command.name for command, _ in command_parsers()]
    assert [name for name in names if symptom_named(name)] == []
    keys = {key for shape in BLOCKS.values() for key in shape.names}
    assert {key for key in keys if symptom_named(key)} == {"callbacks", "resume"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_topics_and_keys_that_a_page_names_exist(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parsers = {command.name: parser for command, parser in command_parsers()}
    named = [code for code in inline_code(page) if code.startswith("planc ")]
    assert named
    for code in named:
        words = shlex.split(code)[1:]
        if words[0] == "explain":
            assert main(words) == 0, code
        own = subcommands(parsers[words[0]])
        parser, rest = (own[words[1]], words[2:]) if own else (parsers[words[0]], words[1:])
        parser.parse_args(rest)
    for code in inline_code(page):
        if (block := _BLOCK.fullmatch(code)) and block[1] in BLOCKS and '"' not in block[2]:
            assert set(_KEY.findall(block[2])) <= set(BLOCKS[block[1]].names), code
    capsys.readouterr()
