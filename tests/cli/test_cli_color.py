"""Colors: for terminals, unless a flag or a variable decides otherwise."""

from __future__ import annotations

import os

import pytest

from planc.cli.main import main
from planc.cli.support.terminal import color_choice
from tests.cli.terminal import at_terminal
from tests.plans import PLANS

PLAN = str(PLANS / "quickstart.plan")
BROKEN = ("check", PLAN, "--set", "mesh.tp=3")
VIEWS = (
    BROKEN,
    ("check", PLAN),
    ("estimate", PLAN),
    ("show", PLAN),
    ("explain", "P402"),
    ("explain", "mesh"),
)
UNSET = {"NO_COLOR": "", "FORCE_COLOR": "", "CLICOLOR_FORCE": ""}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)


def is_colored(capsys: pytest.CaptureFixture[str], *argv: str) -> bool:
    main(argv)
    return "\x1b[" in capsys.readouterr().out


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_always_colors_a_pipe(capsys: pytest.CaptureFixture[str], view: tuple[str, ...]) -> None:
    assert is_colored(capsys, *view, "--color", "always")
    assert not is_colored(capsys, *view, "--color", "auto")
    assert not is_colored(capsys, *view)


@pytest.mark.parametrize("name", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_a_variable_forces_color(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert is_colored(capsys, *BROKEN)
    assert not is_colored(capsys, *BROKEN, "--color", "never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_colored(capsys, *BROKEN)
    assert is_colored(capsys, *BROKEN, "--color", "always")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv(name, "0")
    assert not is_colored(capsys, *BROKEN)


def test_never_leaves_a_terminal_plain() -> None:
    assert "\x1b[3" in at_terminal(BROKEN, columns=100, environment=UNSET)
    assert "\x1b[" not in at_terminal((*BROKEN, "--color", "never"), columns=100, environment=UNSET)


def test_a_choice_ends_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with color_choice("always"):
        assert (os.environ.get("FORCE_COLOR"), os.environ.get("NO_COLOR")) == ("1", None)
    assert (os.environ.get("FORCE_COLOR"), os.environ["NO_COLOR"]) == (None, "1")


def test_a_page_is_rendered_with_colors_and_plain_without(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "P402", "--color", "always"]) == 0
    assert "# P402" not in capsys.readouterr().out
    assert main(["explain", "P402"]) == 0
    assert capsys.readouterr().out.startswith("# P402: ")
