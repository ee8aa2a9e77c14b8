"""Commands that planc does not have, and how `planc --help` groups those that it has."""

from __future__ import annotations

import re
import shlex

import pytest

from planc.cli.main import COMMANDS, command_parsers, main
from planc.cli.support.parser import subcommands
from planc.cli.support.signposts import signposted


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("train", "`torchrun --nproc-per-node N -m planc.run PLAN`"),
        ("init", "`planc new MODEL`"),
        ("evaluate", "`planc eval CHECKPOINT`"),
        ("generate", "`planc sample CHECKPOINT"),
        ("validate", "`planc check PLAN`"),
        ("lint", "`planc check PLAN`"),
        ("dry_run", "`planc check PLAN --deep`"),
    ],
)
@pytest.mark.parametrize("rest", [[], ["x.plan", "--lr", "1"], ["--help"]], ids=["alone", "options", "help"])
def test_a_command_of_another_tool_is_a_signpost(
    word: str, part: str, rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, *rest]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"planc: error: planc has no command `{word}`: ")
    assert part in captured.err


def test_no_signpost_hides_a_command() -> None:
    assert {command.name for command in COMMANDS} & {*signposted(), "help"} == set()


def test_commands_and_options_that_signposts_name_exist() -> None:
    parsers = {command.name: parser for command, parser in command_parsers()}
    named = {
        code for text in signposted().values() for code in re.findall(r"`([^`]+)`", text) if "planc " in code
    }
    assert len(named) > 15
    for code in named:
        words = shlex.split(code)
        if words[:2] == ["planc", "help"] or words == ["planc", "--version"]:
            continue
        parser = parsers["run" if "planc.run" in words else words[1]]
        parser = subcommands(parser).get(words[2], parser) if len(words) > 2 else parser
        flags = {flag for action in parser._actions for flag in action.option_strings}
        assert {word for word in words if word.startswith("-")} - {"-m", "--nproc-per-node"} <= flags, code


def test_help_lists_each_command_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    titles = re.findall(r"^(\S[^\n]*):\n  (\S+)", out, re.MULTILINE)
    firsts = dict(titles)
    assert list(firsts)[2:8] == [
        "write a plan",
        "check and understand it",
        "compare",
        "run",
        "checkpoints, data and models",
        "tools",
    ]
    assert firsts["run"] == "doctor" and "commands" not in firsts and "positional arguments" not in firsts
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", out, re.MULTILINE)
    assert listed == [command.name for command in COMMANDS]
