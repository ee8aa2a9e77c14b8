"""`planc completions`, in the shells that are here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from planc.cli.main import COMMANDS, command_parsers, main
from tests.patience import WAIT_SECONDS

BASH = """\
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_planc
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """The script of each shell, in a file."""
    found = {}
    for shell in ("bash", "zsh", "fish"):
        assert main(["completions", shell]) == 0
        found[shell] = tmp_path / f"planc.{shell}"
        found[shell].write_text(capsys.readouterr().out)
    return found


def complete(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    command = ["bash", "-c", BASH, "bash", str(script), "planc", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=WAIT_SECONDS
    ).stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ch",), ["check", "checkpoint"]),
        (("",), [*(command.name for command in COMMANDS), "help"]),
        (("checkpoint", "v"), ["verify"]),
        (("checkpoint", "verify", "--q"), ["--quiet"]),
        (("checkpoint", "ls", "--values"), []),
        (("checkpoint", "export", "x", "--dtype", "bf"), ["bfloat16"]),
        (("help", "che"), ["check", "checkpoint"]),
        (("check", "--output-f"), ["--output-format"]),
        (("check", "--output-format", "sa"), ["sarif"]),
        (("diff", "a.plan", "b.plan", "--fail-on", "me"), ["memory"]),
        (("schema", "di"), ["diagnostics", "diff"]),
        (("check", "x"), []),
        (("check", "--set", "x"), []),
    ],
    ids=" ".join,
)
def test_bash_offers_what_fits(scripts: dict[str, Path], words: tuple[str, ...], offered: list[str]) -> None:
    assert complete(scripts["bash"], *words) == offered


def test_every_option_of_every_command_is_in_every_script(scripts: dict[str, Path]) -> None:
    for shell, script in scripts.items():
        text = script.read_text()
        for command, parser in command_parsers():
            assert command.name in text
            for flag in parser._option_string_actions:
                shown = (
                    flag
                    if shell != "fish"
                    else f"-{'l' if flag.startswith('--') else 's'} {flag.lstrip('-')}"
                )
                assert shown in text, (shell, command.name, flag)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_parse(scripts: dict[str, Path], shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    done = subprocess.run(
        [shell, "-n", str(scripts[shell])], capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("planc sche", ["schema"]),
        ("planc check --output-format sa", ["sarif"]),
        ("planc schema ar", ["artifact"]),
    ],
)
def test_fish_offers_what_fits(scripts: dict[str, Path], line: str, offered: list[str]) -> None:
    program = f"source {scripts['fish']}; complete -C '{line}'"
    done = subprocess.run(
        ["fish", "-N", "-c", program], capture_output=True, text=True, check=True, timeout=WAIT_SECONDS
    )
    assert [shown.split("\t")[0] for shown in done.stdout.splitlines()] == offered
