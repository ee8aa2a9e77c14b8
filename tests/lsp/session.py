"""Record a session of an editor with `planc lsp`: `python -m tests.lsp.session > tests/lsp/SESSION.md`."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.lsp.wire import Message, Wire, wired
from tests.plans import PLANS, QUICKSTART

PAGE = Path(__file__).with_name("SESSION.md")
CAPABILITIES = {
    "textDocument": {
        "hover": {"contentFormat": ["markdown"]},
        "codeAction": {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["quickfix"]}}},
        "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
    },
    "workspace": {"workspaceEdit": {"documentChanges": True}},
}
HEAD = """\
# A session with the language server

Every message between an editor and `planc lsp`, from start to end, recorded by `python -m tests.lsp.session`.
The editor opens `plans/quickstart.plan` with a misspelled key, and asks for what the server offers. `->` is
sent by the editor, `<-` by the server. Positions are `line:character` from 0. Long texts and lists are cut.

"""
_MAX_TEXT = 72
_MAX_ITEMS = 3


def record() -> list[tuple[bool, Message]]:
    """The messages in order, with whether the server sent each."""
    text = QUICKSTART.read_text(encoding="utf-8")
    slip = text.replace("weights = random", "wieghts = random")
    with tempfile.TemporaryDirectory() as folder, wired(capabilities=CAPABILITIES) as wire:
        path = Path(folder) / "x.plan"
        shutil.copytree(PLANS / "models" / "tiny-llama", path.parent / "models" / "tiny-llama")
        uri = path.as_uri()
        document = {"uri": uri, "languageId": "plan", "version": 1, "text": slip}
        wire.tell("textDocument/didOpen", {"textDocument": document})
        _until_published(wire, 1)
        _ask(wire, "codeAction", uri, range=_line(slip, "wieghts"), context={"diagnostics": []})
        changed = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": text}]}
        wire.tell("textDocument/didChange", changed)
        _until_published(wire, 2)
        _ask(wire, "hover", uri, position=_at(text, "clip_grad_norm"))
        _ask(wire, "hover", uri, position=_at(text, '"model.layers.*.self_attn.{q,k,v}_proj"'))
        _ask(wire, "completion", uri, position=_at(text, "tp = 2"))
        _ask(wire, "definition", uri, position=_at(text, "lr, betas"))
        _ask(wire, "prepareRename", uri, position=_at(text, "lr, betas"))
        _ask(wire, "rename", uri, position=_at(text, "lr, betas"), newName="peak")
        _ask(wire, "rename", uri, position=_at(text, "mesh {"), newName="grid")
        _ask(wire, "documentSymbol", uri)
        _ask(wire, "inlayHint", uri, range=_whole(text))
        untidy = text.replace("  tp = 2", "      tp=2")
        changed = {"textDocument": {"uri": uri, "version": 3}, "contentChanges": [{"text": untidy}]}
        wire.tell("textDocument/didChange", changed)
        _until_published(wire, 3)
        _ask(wire, "formatting", uri, options={"tabSize": 2, "insertSpaces": True})
        wire.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
        wire.ask("shutdown", None)
        wire.tell("exit", None)
        return [(is_ours, _without(message, folder)) for is_ours, message in wire.log]


def page() -> str:
    lines = [line for is_ours, message in record() for line in _shown(message, is_ours=is_ours)]
    return HEAD + "```text\n" + "\n".join(lines) + "\n```\n"


def _ask(wire: Wire, method: str, uri: str, **more: Any) -> None:
    wire.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, **more})


def _until_published(wire: Wire, version: int) -> None:
    wire.until(lambda one: one.get("params", {}).get("version") == version)


def _at(text: str, word: str) -> dict[str, int]:
    before = text[: text.index(word) + 1]
    return {"line": before.count("\n"), "character": len(before.rpartition("\n")[2])}


def _line(text: str, word: str) -> dict[str, dict[str, int]]:
    return {"start": _at(text, word), "end": _at(text, word)}


def _whole(text: str) -> dict[str, dict[str, int]]:
    return {"start": {"line": 0, "character": 0}, "end": {"line": text.count("\n"), "character": 0}}


def _without(message: Message, folder: str) -> Message:
    found: Message = json.loads(json.dumps(message).replace(folder, "/plans"))
    return found


def _shown(message: Message, *, is_ours: bool) -> Iterator[str]:
    """A message's first line has its arrow, its number and its method; the rest is its values."""
    arrow = "<-" if is_ours else "->"
    number = f" {message['id']}" if "id" in message else ""
    name = message.get("method") or ("error" if "error" in message else "result")
    yield f"{arrow}{number} {name}"
    value = message.get("params", message.get("error", message.get("result")))
    if value not in (None, {}):
        yield from (f"     {line}" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    """A value over lines: keys before values, items after dashes, places in one word."""
    if isinstance(value, dict):
        for key, inner in value.items():
            short = _short(inner)
            yield f"{key}:" if short is None else f"{key}: {short}"
            yield from (f"  {line}" for line in _lines(inner)) if short is None else ()
    elif isinstance(value, list):
        for inner in value[:_MAX_ITEMS]:
            first, *others = [_short(inner)] if _short(inner) is not None else _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
        if len(value) > _MAX_ITEMS:
            yield f"... and {len(value) - _MAX_ITEMS} more"


def _short(value: Any) -> str | None:
    """A value on one line; None of what takes several."""
    match value:
        case {"line": line, "character": character}:
            return f"{line}:{character}"
        case {"start": start, "end": end}:
            return f"{_short(start)} to {_short(end)}"
        case str():
            shown = json.dumps(value, ensure_ascii=False)
            return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}..."
        case dict() | list() if value:
            return None
        case _:
            return json.dumps(value)


if __name__ == "__main__":
    print(page(), end="")
