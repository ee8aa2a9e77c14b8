"""The example of an extension for VS Code: what it names is there."""

from __future__ import annotations

import json
from pathlib import Path

from planc import __version__
from planc.cli.main import COMMANDS
from planc.highlight.rules import FILE

FOLDER = Path(__file__).parents[2] / "examples" / "editors" / "vscode"
PACKAGE = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))


def test_the_extension_has_the_version_of_planc() -> None:
    assert PACKAGE["version"] == __version__


def test_every_file_that_the_extension_names_is_there_or_is_copied_when_it_is_packaged() -> None:
    _, source, _ = PACKAGE["scripts"]["vscode:prepublish"].split()
    assert (FOLDER / source).resolve() == FILE.resolve()
    (language,), (grammar,) = PACKAGE["contributes"]["languages"], PACKAGE["contributes"]["grammars"]
    named = {PACKAGE["main"], language["configuration"], grammar["path"]}
    assert {name for name in named if not (FOLDER / name).is_file()} <= {f"./{FILE.name}"}
    json.loads((FOLDER / language["configuration"]).read_text(encoding="utf-8"))


def test_the_extension_colors_by_the_grammar_of_plans() -> None:
    (grammar,) = PACKAGE["contributes"]["grammars"]
    assert grammar["scopeName"] == json.loads(FILE.read_text(encoding="utf-8"))["scopeName"]


def test_the_extension_starts_a_command_of_planc() -> None:
    assert 'args: ["lsp"]' in (FOLDER / "extension.js").read_text(encoding="utf-8")
    assert "lsp" in [command.name for command in COMMANDS]
