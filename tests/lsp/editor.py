"""An editor: pygls's own client, which starts `planc lsp` and talks to it over stdin and stdout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve
from lsprotocol import types
from pygls.lsp.client import LanguageClient
from pygls.uris import from_fs_path

from tests.patience import WAIT_SECONDS

T = TypeVar("T")
CAPABILITIES = types.ClientCapabilities(
    text_document=types.TextDocumentClientCapabilities(
        hover=types.HoverClientCapabilities(content_format=[types.MarkupKind.Markdown]),
        document_symbol=types.DocumentSymbolClientCapabilities(hierarchical_document_symbol_support=True),
        code_action=types.CodeActionClientCapabilities(
            code_action_literal_support=types.ClientCodeActionLiteralOptions(
                types.ClientCodeActionKindOptions([types.CodeActionKind.QuickFix])
            )
        ),
    )
)
"""What editors of today take."""


class Editor:
    """A client whose calls wait for the answer."""

    def __init__(self, runner: asyncio.Runner, capabilities: types.ClientCapabilities) -> None:
        self.runner = runner
        self.client = LanguageClient("test", "1")
        self.published: dict[tuple[str, int | None], list[types.Diagnostic]] = {}
        self.errors: list[str] = []
        self.num_refreshes = 0
        self.versions: dict[str, int | None] = {}
        self.arrived = asyncio.Event()
        self.capabilities = capabilities

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def _(params: types.PublishDiagnosticsParams) -> None:
            self.published[params.uri, params.version] = list(params.diagnostics)
            self.arrived.set()

        @self.client.feature(types.WINDOW_SHOW_MESSAGE)
        def _(params: types.ShowMessageParams) -> None:
            self.errors.append(params.message)

        @self.client.feature(types.WORKSPACE_INLAY_HINT_REFRESH)
        def _(params: None) -> None:
            self.num_refreshes += 1
            self.arrived.set()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, WAIT_SECONDS))

    def start(self) -> types.InitializeResult:
        return self.wait(self._start())

    async def _start(self) -> types.InitializeResult:
        await self.client.start_io(sys.executable, "-m", "planc", "lsp", "--stdio")
        params = types.InitializeParams(capabilities=self.capabilities)
        found = await self.client.initialize_async(params)
        self.client.initialized(types.InitializedParams())
        return found

    def stop(self) -> int | None:
        """End the session as editors do; the server's exit code."""
        return self.wait(self._stop())

    async def _stop(self) -> int | None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        server = self.client._server
        assert server is not None
        return await server.wait()

    def open(self, path: Path, text: str) -> list[types.Diagnostic]:
        """Open a text and wait for its findings."""
        uri = uri_of(path)
        version = self.versions[uri] = (self.versions.get(uri) or 0) + 1
        item = types.TextDocumentItem(uri, "plan", version, text)
        self._tell(self.client.text_document_did_open, types.DidOpenTextDocumentParams(item))
        return self.findings(path)

    def type(self, path: Path, text: str, *, waits: bool = True) -> list[types.Diagnostic]:
        """Replace a text as a key stroke does, and wait for the findings."""
        uri = uri_of(path)
        version = (self.versions[uri] or 0) + 1
        self.versions[uri] = version
        document = types.VersionedTextDocumentIdentifier(version, uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        params = types.DidChangeTextDocumentParams(document, [change])
        self._tell(self.client.text_document_did_change, params)
        return self.findings(path) if waits else []

    def close(self, path: Path) -> None:
        params = types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri_of(path)))
        self._tell(self.client.text_document_did_close, params)

    def save(self, path: Path) -> None:
        params = types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(uri_of(path)))
        self._tell(self.client.text_document_did_save, params)

    def ask(self, method: str, params: Any) -> Any:
        """The answer to a request of the client, by the end of its method's name."""
        return self.wait(getattr(self.client, f"text_document_{method}_async")(params))

    def fixes(self, path: Path, line: int) -> list[types.CodeAction]:
        """The code actions offered for a line, which counts from 0."""
        place = types.Position(line, 0)
        params = types.CodeActionParams(
            types.TextDocumentIdentifier(uri_of(path)), types.Range(place, place), types.CodeActionContext([])
        )
        found = self.wait(self.client.text_document_code_action_async(params))
        return [one for one in found or [] if isinstance(one, types.CodeAction)]

    def findings(self, path: Path, *, saying: str = "") -> list[types.Diagnostic]:
        """The findings on the newest text, once they arrive, and one of them has a message with `saying`."""
        key = (uri_of(path), self.versions[uri_of(path)])
        return self.wait(self._findings(key, saying))

    async def _findings(self, key: tuple[str, int | None], saying: str) -> list[types.Diagnostic]:
        def is_there() -> bool:
            found = self.published.get(key)
            return found is not None and (not saying or any(saying in one.message for one in found))

        while not is_there():
            self.arrived.clear()
            await self.arrived.wait()
        return self.published[key]

    def _tell(self, notify: Any, params: Any) -> None:
        async def tell() -> None:
            notify(params)

        self.wait(tell())


def uri_of(path: Path) -> str:
    uri = from_fs_path(str(path))
    assert uri is not None
    return uri


def edited(text: str, edits: Iterable[types.TextEdit]) -> str:
    """A text of ASCII after edits that don't overlap."""
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    for edit in sorted(
        edits, key=lambda one: (one.range.start.line, one.range.start.character), reverse=True
    ):
        start, end = (starts[place.line] + place.character for place in (edit.range.start, edit.range.end))
        text = text[:start] + edit.new_text + text[end:]
    return text


def edits_of(action: types.CodeAction, path: Path) -> list[types.TextEdit]:
    assert action.edit is not None and action.edit.changes is not None
    return list(action.edit.changes[uri_of(path)])


@contextmanager
def editing(
    *, encoding: str = "utf-16", capabilities: types.ClientCapabilities = CAPABILITIES
) -> Iterator[Editor]:
    """A started editor; its server ends with it."""
    general = types.GeneralClientCapabilities(position_encodings=[encoding])
    with asyncio.Runner() as runner:

        async def made() -> Editor:
            return Editor(runner, evolve(capabilities, general=general))

        editor = runner.run(made())
        editor.start()
        try:
            yield editor
        finally:
            server = editor.client._server
            if server is not None and server.returncode is None:
                server.kill()
                runner.run(server.wait())


def marked(text: str, mark: str = "§") -> tuple[str, types.Position]:
    """A text without its mark, and where that was."""
    before, _, after = text.partition(mark)
    return before + after, types.Position(before.count("\n"), len(before.rpartition("\n")[2]))
