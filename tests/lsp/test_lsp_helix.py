"""What the documentation gives for Helix names what planc has. Helix itself is not a package of Debian."""

from __future__ import annotations

import json
import re
import tomllib

from planc.cli.main import COMMANDS
from planc.highlight.rules import FILE
from tests.lsp.neovim import PAGE
from tests.plans import QUICKSTART

LANGUAGES, CONFIG = (
    tomllib.loads(block)
    for block in re.findall(
        r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
)
(LANGUAGE,) = LANGUAGES["language"]


def test_the_server_is_a_command_of_planc() -> None:
    (server,) = LANGUAGE["language-servers"]
    started = LANGUAGES["language-server"][server]
    assert started["command"] == "planc"
    (command,) = started["args"]
    assert command in [one.name for one in COMMANDS]


def test_plans_are_files_of_the_language() -> None:
    assert f".{LANGUAGE['file-types'][0]}" == QUICKSTART.suffix
    assert LANGUAGE["scope"] == json.loads(FILE.read_text(encoding="utf-8"))["scopeName"]


def test_comments_and_indents_are_those_of_formatted_plans() -> None:
    lines = QUICKSTART.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(LANGUAGE["comment-token"]) for line in lines)
    unit = LANGUAGE["indent"]["unit"]
    assert LANGUAGE["indent"]["tab-width"] == len(unit)
    assert any(re.match(f"{unit}[a-z]", line) for line in lines)


def test_inlay_hints_are_turned_on() -> None:
    assert CONFIG == {"editor": {"lsp": {"display-inlay-hints": True}}}
