"""Editors of all ages: each gets answers in the forms that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from planc.lsp.server import make_server
from tests.lsp.editor import CAPABILITIES, Editor, editing, uri_of
from tests.lsp.wire import Wire, wired
from tests.patience import WAIT_SECONDS
from tests.plans import QUICKSTART

TEXT = QUICKSTART.read_text(encoding="utf-8")
SLIP = TEXT.replace("weights = random", "wieghts = random")
DOCUMENT = types.TextDocumentIdentifier(uri_of(QUICKSTART))
OLD = types.ClientCapabilities()
VERSIONED = types.ClientCapabilities(
    text_document=CAPABILITIES.text_document,
    workspace=types.WorkspaceClientCapabilities(
        workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=True),
        inlay_hint=types.InlayHintWorkspaceClientCapabilities(refresh_support=True),
    ),
)


@pytest.fixture(scope="module")
def old() -> Iterator[Editor]:
    with editing(capabilities=OLD) as found:
        yield found
        assert found.errors == []


@pytest.fixture(scope="module")
def versioned() -> Iterator[Editor]:
    with editing(capabilities=VERSIONED) as found:
        yield found
        assert found.errors == []


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with wired() as found:
        yield found


def place_of(word: str) -> types.Position:
    before = TEXT[: TEXT.index(word) + 1]
    return types.Position(before.count("\n"), len(before.rpartition("\n")[2]))


def test_an_editor_without_markdown_gets_plain_text(old: Editor) -> None:
    old.open(QUICKSTART, TEXT)
    found = old.ask("hover", types.HoverParams(DOCUMENT, place_of("clip_grad_norm")))
    assert found.contents.kind is types.MarkupKind.PlainText
    assert found.contents.value.startswith("optimizer.clip_grad_norm: ")


def test_an_editor_without_nested_symbols_gets_a_list(old: Editor) -> None:
    old.open(QUICKSTART, TEXT)
    found: list[Any] = old.ask("document_symbol", types.DocumentSymbolParams(DOCUMENT))
    assert ("tp", "mesh") in [(one.name, one.container_name) for one in found]


def test_an_editor_that_takes_commands_only_gets_no_actions(old: Editor) -> None:
    old.open(QUICKSTART, SLIP)
    assert old.fixes(QUICKSTART, SLIP.splitlines().index("  wieghts = random")) == []


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "of_text",
    [
        {"documentSymbol": {"symbolKind": {"valueSet": [1, 300]}}},
        {"publishDiagnostics": {"tagSupport": {"valueSet": [1, 300]}}},
        {"completion": {"completionItemKind": {"valueSet": [1, 300]}}},
        {"codeAction": {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["", "new.kind"]}}}},
        {"hover": {"contentFormat": ["html", "markdown"]}},
        {"quantum": {"dynamicRegistration": True}, "hover": None},
    ],
    ids=str,
)
def test_capabilities_of_a_newer_protocol_end_no_session(of_text: dict[str, Any]) -> None:
    with wired(capabilities={"textDocument": of_text}) as wire:
        assert "positionEncoding" in wire.log[1][1]["result"]["capabilities"]


@pytest.mark.parametrize(
    "params",
    [
        {"textDocument": {"uri": "file:///x.plan"}},
        {"textDocument": {"uri": "file:///x.plan"}, "position": {"line": -1, "character": 0}},
        {"textDocument": "file:///x.plan", "position": {"line": "1", "character": None}},
        [],
    ],
    ids=str,
)
def test_a_request_that_can_not_be_read_is_answered(wire: Wire, params: Any) -> None:
    reason = wire.ask("textDocument/hover", params)["error"]["message"]
    assert reason == "the parameters of textDocument/hover are not those of the protocol"


@pytest.mark.parametrize("body", [b"{not json", b"[1, 2]", b"\xff\xfe", b"null", b'"x"', b"{}"], ids=repr)
def test_what_is_not_a_message_ends_no_session(wire: Wire, body: bytes) -> None:
    wire.write(body)
    place = {"line": 0, "character": 0}
    assert "result" in wire.ask(
        "textDocument/hover", {"textDocument": {"uri": DOCUMENT.uri}, "position": place}
    )


def test_edits_name_the_version_that_they_are_of(versioned: Editor) -> None:
    versioned.open(QUICKSTART, TEXT)
    versioned.type(QUICKSTART, SLIP)
    version = versioned.versions[uri_of(QUICKSTART)]
    fix, _ = versioned.fixes(QUICKSTART, SLIP.splitlines().index("  wieghts = random"))
    renamed = versioned.ask("rename", types.RenameParams(DOCUMENT, place_of("lr: float"), "peak"))
    for edit in (fix.edit, renamed):
        assert edit is not None and edit.changes is None
        (changed,) = edit.document_changes
        assert (changed.text_document.uri, changed.text_document.version) == (uri_of(QUICKSTART), version)


@pytest.mark.parametrize(
    ("only", "kinds"),
    [
        ("quickfix", {"quickfix"}),
        ("source", {"source.fixAll.planc"}),
        ("source.fixAll", {"source.fixAll.planc"}),
        ("source.fixAll.planc", {"source.fixAll.planc"}),
        ("source.fix", set()),
        ("refactor", set()),
        ("made.by.an.editor", set()),
    ],
)
def test_an_editor_gets_the_kinds_of_action_that_it_asks_for(
    versioned: Editor, only: str, kinds: set[str]
) -> None:
    versioned.open(QUICKSTART, SLIP)
    line = SLIP.splitlines().index("  wieghts = random")
    params = types.CodeActionParams(
        DOCUMENT,
        types.Range(types.Position(line, 0), types.Position(line, 0)),
        types.CodeActionContext([], only=[only]),
    )
    found = versioned.ask("code_action", params)
    assert {getattr(one.kind, "value", one.kind) for one in found} == kinds


def test_the_name_to_change_is_known_before_the_new_one(versioned: Editor) -> None:
    versioned.open(QUICKSTART, TEXT)
    place = types.Position(
        place_of("lr = lr,").line, TEXT.splitlines()[place_of("lr = lr,").line].index("= lr") + 2
    )
    found = versioned.ask("prepare_rename", types.PrepareRenameParams(DOCUMENT, place))
    assert found.placeholder == "lr"
    assert (found.range.start, found.range.end.character) == (place, place.character + 2)
    with pytest.raises(JsonRpcException, match="only a parameter"):
        versioned.ask("prepare_rename", types.PrepareRenameParams(DOCUMENT, place_of("mesh {")))


def test_hints_are_asked_for_again_after_a_save(versioned: Editor) -> None:
    """They may depend on a model that a command has read meanwhile."""
    versioned.open(QUICKSTART, TEXT)
    before = versioned.num_refreshes

    async def refreshed() -> None:
        while versioned.num_refreshes == before:
            versioned.arrived.clear()
            await versioned.arrived.wait()

    versioned.save(QUICKSTART)
    versioned.wait(refreshed())


def test_a_check_goes_on_when_what_asked_for_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a text that is to be checked again, because a model changed, would not be."""

    async def cancel() -> None:
        server = make_server()
        monkeypatch.setattr(server, "_publish", lambda *args, **kwargs: None)
        server.session.put(QUICKSTART, TEXT)
        server.session.forget_models()
        asked = asyncio.ensure_future(server.fresh(QUICKSTART))
        while QUICKSTART in server.session.stale:
            await asyncio.sleep(0)
        asked.cancel()
        while not server.session.is_fresh(QUICKSTART):
            await asyncio.sleep(0.01)

    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(cancel(), WAIT_SECONDS))
