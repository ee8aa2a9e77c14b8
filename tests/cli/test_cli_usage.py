"""Help, versions, and wrong command lines: each names its own command, and what was probably meant."""

from __future__ import annotations

import pytest

from planc import __version__
from planc.cli.commands import run
from planc.cli.main import COMMANDS, main


def outcome(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_version(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert outcome(capsys, flag) == (0, f"planc {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["help"], ["--help"]),
        (["help", "check"], ["check", "--help"]),
        (["help", "checkpoint", "ls"], ["checkpoint", "ls", "--help"]),
    ],
)
def test_help_is_a_command(capsys: pytest.CaptureFixture[str], words: list[str], flags: list[str]) -> None:
    code, out, err = outcome(capsys, *words)
    assert (code, out, err) == outcome(capsys, *flags)
    assert code == 0 and out.startswith("usage: planc ")


def test_help_of_an_unknown_command_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = outcome(capsys, "help", "chekc")
    assert code == 2
    assert "unknown command `chekc`; did you mean `check`?" in err


@pytest.mark.parametrize(
    ("argv", "last"),
    [
        (["chekc"], "planc: error: unknown command `chekc`; did you mean `check`?"),
        (["zzz"], "planc: error: unknown command `zzz`; `planc --help` lists all commands"),
        (
            ["checkpoint", "verfy", "x"],
            "planc checkpoint: error: unknown command `verfy`; did you mean `verify`?",
        ),
        (["check", "x", "--fixx"], "planc check: error: unknown option `--fixx`; did you mean `--fix`?"),
        (
            ["check", "x", "--world=2"],
            "planc check: error: unknown option `--world`; did you mean `--world-size`?",
        ),
        (
            ["check", "--json", "x"],
            "planc check: error: unknown option `--json`; did you mean `--output-format json`?",
        ),
        (
            ["show", "x", "--zzz"],
            "planc show: error: unknown option `--zzz`; `planc show --help` lists all options",
        ),
        (["show", "a", "b"], "planc show: error: unexpected argument `b`"),
        (
            ["check", "x", "--output-format", "jsn"],
            "planc check: error: argument --output-format: unknown value `jsn`; did you mean `json`?",
        ),
        (
            ["check", "x", "--color", "red"],
            "planc check: error: argument --color: unknown value `red`; write auto, always, never",
        ),
        (["--debgu", "check", "x"], "planc: error: unknown option `--debgu`; did you mean `--debug`?"),
    ],
    ids=" ".join,
)
def test_a_wrong_word_gets_a_suggestion(
    capsys: pytest.CaptureFixture[str], argv: list[str], last: str
) -> None:
    code, out, err = outcome(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == last
    assert err.startswith(f"usage: {last.partition(':')[0]} ")


def test_the_runs_own_entry_suggests_options_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run.main(["x.plan", "--run-dirr", "y"])
    assert stop.value.code == 2
    assert (
        "planc.run: error: unknown option `--run-dirr`; did you mean `--run-dir`?" in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_an_option_has_the_same_value_name_in_every_command(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    _, out, _ = outcome(capsys, command, "--help")
    words = {"--set": "PATH=VALUE", "--run-dir": "DIR", "--output-format": "FORMAT", "--gpu": "NAME"}
    words |= {"--world-size": "N", "--output": "FILE", "--color": "WHEN"}
    for line in out.partition("options:")[2].splitlines():
        listed = line.split("  ")[1] if line.startswith("  -") else ""
        for option, value in words.items():
            if listed.startswith(f"{option} ") or f", {option} " in listed:
                assert listed.endswith(f"{option} {value}"), line


@pytest.mark.parametrize("argv", [["--color", "never", "check"], ["--debug", "--color=never", "check"]])
def test_global_options_may_come_first(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    code, out, _ = outcome(capsys, *argv, "/nowhere.plan")
    assert code == 2 and "P100" in out
