"""Texts and places that no one meant: every request is answered, and the session goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planc.lsp.client import MAX_MESSAGE_BYTES, OVERSIZED
from tests.bench.long_plan import long_plan
from tests.lsp.wire import Message, Wire, wired
from tests.plans import PLANS, QUICKSTART

TEXT = QUICKSTART.read_text(encoding="utf-8")
CAPABILITIES = {
    "textDocument": {"codeAction": {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": [""]}}}}
}
GARBAGE = {
    "nothing": "",
    "NUL": "model {\0 hf = 1 }",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x85\u2028\ufeff",
    "a byte order mark": "\ufeff" + TEXT,
    "half a surrogate pair": "mesh { \ud800 = 1 }",
    "brackets": "{" * 5000,
    "lists": "mesh { a = " + "[" * 3000 + "]" * 3000 + " }",
    "quotes": '"' * 3001,
    "old Mac line ends": TEXT.replace("\n", "\r"),
    "mixed line ends": TEXT.replace("\n", "\r\n", 20),
    "a long line": "# " + "x" * 2_000_000,
    "a long string": 'model { hf = "' + "é🦀" * 150_000 + '" }',
    "10_000 lines": long_plan(10_000, model="llama-3.1-8b", num_layers=32),
    "a base that is missing": f'extends "missing.plan"\n{TEXT}',
    "a base that is a directory": f'extends "models"\n{TEXT}',
    "a base that is not text": f'extends "binary.plan"\n{TEXT}',
    "a base that is the plan": f'extends "x.plan"\n{TEXT}',
}


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with wired(capabilities=CAPABILITIES) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(PLANS / "models" / "tiny-llama", tmp_path / "models" / "tiny-llama")
    (tmp_path / "binary.plan").write_bytes(b"\xff\xfe\0\x80")
    return tmp_path


def opened(wire: Wire, uri: str, text: str) -> list[Message]:
    """The findings of a text."""
    wire.tell(
        "textDocument/didOpen",
        {"textDocument": {"uri": uri, "languageId": "plan", "version": 1, "text": text}},
    )
    return wire.until(lambda one: one.get("params", {}).get("version") == 1)["params"]["diagnostics"]


def closed(wire: Wire, uri: str) -> None:
    wire.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
    wire.until(lambda one: one.get("method") == "textDocument/publishDiagnostics")


def ask_all(wire: Wire, uri: str) -> None:
    """Everything that an editor asks, also past the ends; a refused rename is the only error."""
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 2**31 - 1, "character": 0}}
    for line, character in ((0, 0), (6, 9), (0, 2**31 - 1), (2**31 - 1, 2**31 - 1)):
        place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        for method in ("hover", "completion", "definition", "prepareRename"):
            _answer(wire, method, place)
        _answer(wire, "references", {**place, "context": {"includeDeclaration": True}})
        _answer(wire, "rename", {**place, "newName": "other"})
    for method, more in (
        ("documentSymbol", {}),
        ("formatting", {"options": {"tabSize": 2, "insertSpaces": True}}),
        ("inlayHint", {"range": whole}),
        ("codeAction", {"range": whole, "context": {"diagnostics": []}}),
    ):
        _answer(wire, method, {"textDocument": {"uri": uri}, **more})


def _answer(wire: Wire, method: str, params: dict[str, Any]) -> None:
    found = wire.ask(f"textDocument/{method}", params)
    assert "result" in found or found["error"]["code"] == -32602, found


@pytest.mark.parametrize("name", GARBAGE)
def test_a_text_of_garbage_has_findings_and_answers(wire: Wire, folder: Path, name: str) -> None:
    uri = (folder / "x.plan").as_uri()
    found = opened(wire, uri, GARBAGE[name])
    assert (found == []) == (name == "mixed line ends")
    ask_all(wire, uri)
    closed(wire, uri)
    assert not [one for is_ours, one in wire.log if is_ours and one.get("method") == "window/showMessage"]


def test_nothing_is_offered_in_a_text_that_is_too_large_for_a_plan(wire: Wire, folder: Path) -> None:
    """Its tokens would be read at every key stroke."""
    uri = (folder / "x.plan").as_uri()
    opened(wire, uri, "mesh {\n  \n}\n# " + "x" * 250_000)
    place = {"textDocument": {"uri": uri}, "position": {"line": 1, "character": 2}}
    assert wire.ask("textDocument/completion", place)["result"] == []
    closed(wire, uri)


def test_a_directory_may_vanish_while_its_plan_is_open(wire: Wire, folder: Path) -> None:
    uri = (folder / "x.plan").as_uri()
    assert opened(wire, uri, TEXT) == []
    shutil.rmtree(folder)
    wire.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
    (found,) = wire.until(lambda one: one.get("method") == "textDocument/publishDiagnostics")["params"][
        "diagnostics"
    ]
    assert found["code"] == "P216"
    ask_all(wire, uri)
    closed(wire, uri)


def test_the_directory_of_the_server_may_vanish(tmp_path: Path) -> None:
    """A text that is not saved yet has no other."""
    here = tmp_path / "here"
    here.mkdir()
    with wired(capabilities=CAPABILITIES, cwd=str(here)) as wire:
        here.rmdir()
        assert opened(wire, "untitled:Untitled-1", TEXT) != []
        ask_all(wire, "untitled:Untitled-1")


@pytest.mark.parametrize(
    "uri",
    [
        "untitled:Untitled-1",
        "file:///",
        "file:///no/such%20folder/%F0%9F%A6%80.plan",
        "file://host/share/x.plan",
        "inmemory://model/1",
        "vscode-notebook-cell:/a/b.ipynb#W0",
        "x",
    ],
)
def test_a_text_may_have_any_address(wire: Wire, uri: str) -> None:
    (found, *_) = opened(wire, uri, TEXT.replace("weights = random", "wieghts = random"))
    assert found["code"] == "P202"
    ask_all(wire, uri)
    closed(wire, uri)


def test_a_text_that_is_not_open_has_no_answers(wire: Wire) -> None:
    ask_all(wire, "file:///closed.plan")


@pytest.mark.parametrize(("line_end", "edited"), [("\n", "  tp = 2\n"), ("\r\n", "  tp = 2\r\n")])
def test_edits_end_lines_as_the_text_does(wire: Wire, folder: Path, line_end: str, edited: str) -> None:
    uri = (folder / "x.plan").as_uri()
    opened(wire, uri, TEXT.replace("  tp = 2", "      tp=2").replace("\n", line_end))
    options = {"textDocument": {"uri": uri}, "options": {"tabSize": 2, "insertSpaces": True}}
    (edit,) = wire.ask("textDocument/formatting", options)["result"]
    assert edit["newText"] == edited
    closed(wire, uri)


def test_places_after_an_emoji_count_utf_16(wire: Wire, folder: Path) -> None:
    """In a string and in a comment; 🦀 is two units, é one."""
    uri = (folder / "x.plan").as_uri()
    opened(wire, uri, 'param lr: float = 0.1  # 🦀é\nmodel {\n  hf = ["🦀🦀🦀é", lr]\n}\n')
    place = {"textDocument": {"uri": uri}, "position": {"line": 2, "character": len('  hf = ["') + 10}}
    edits = wire.ask("textDocument/rename", {**place, "newName": "peak"})["result"]["changes"][uri]
    _, used = [(one["range"]["start"]["character"], one["range"]["end"]["character"]) for one in edits]
    assert used == (len('  hf = ["') + 10, len('  hf = ["') + 12)
    closed(wire, uri)


@pytest.mark.parametrize("size", [b"99999999999", b"99999999999999999999999"])
def test_a_length_that_no_message_has_is_refused_and_the_session_goes_on(
    wire: Wire, folder: Path, size: bytes
) -> None:
    wire.stdin.write(b"Content-Length: " + size + b"\r\n\r\n")
    wire.stdin.flush()
    answer = wire.until(lambda message: message.get("id") == OVERSIZED)
    assert f"a message has {int(size):_} bytes" in answer["error"]["message"]
    assert opened(wire, (folder / "oversized.plan").as_uri(), TEXT) is not None


def test_a_message_that_is_too_long_is_skipped(wire: Wire, folder: Path) -> None:
    wire.write(b" " * (MAX_MESSAGE_BYTES + 1))
    answer = wire.until(lambda message: message.get("id") == OVERSIZED)
    assert f"more than {MAX_MESSAGE_BYTES:_}" in answer["error"]["message"]
    assert opened(wire, (folder / "long.plan").as_uri(), TEXT) is not None
