"""The server: what an editor asks, over stdin and stdout, answered by the other modules of this package."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from planc import __version__
from planc.fmt.format import format_source
from planc.lsp import completion, findings, inlay, outline, places, protocol
from planc.lsp import hover as hovering
from planc.lsp.client import (
    MALFORMED,
    OVERSIZED,
    BoundedReader,
    Client,
    Protocol,
    client_of,
    converter,
    refuse,
    refuse_oversized,
)
from planc.lsp.findings import line_edits
from planc.lsp.protocol import Ruler, path_of
from planc.lsp.session import Analysis, Session
from planc.record import record

_FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.planc"


class PlanServer(LanguageServer):
    """A session with an editor.

    Checks run one at a time in a thread, so a slow one delays no other answer. A text that changes during a
    check is checked again when the check ends, however many key strokes that were.
    """

    def __init__(self) -> None:
        super().__init__(
            *("planc", __version__, types.TextDocumentSyncKind.Full),
            protocol_cls=Protocol,
            converter_factory=converter,
        )
        self.session = Session()
        self.uris: dict[Path, str] = {}
        self.checker = ThreadPoolExecutor(max_workers=1)
        self.shown: dict[Path, tuple[Analysis, int | None]] = {}
        """The analysis whose findings the editor has, and the version of the text that it has them for."""
        self.turns: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)

    def put(self, uri: str, text: str, *, version: int | None) -> Path:
        path = path_of(uri)
        self.uris[path] = uri
        self.session.put(path, text, version=version)
        return path

    @property
    def client(self) -> Client:
        return client_of(self.client_capabilities)

    async def fresh(self, path: Path) -> Analysis | None:
        """The analysis of the text as it is now, whose findings are then in the editor; None once closed.

        A request that the editor cancels ends, and its check does not.
        """
        return await asyncio.shield(self._fresh(path))

    async def _fresh(self, path: Path) -> Analysis | None:
        async with self.turns[path]:
            while path in self.session.texts and not self.session.is_fresh(path):
                text, loop = self.session.texts[path], asyncio.get_running_loop()
                analysis = await loop.run_in_executor(self.checker, self.session.analyze, text)
                self.session.keep(path, analysis)
                self._publish(path, analysis, version=text.version)
            known = self.session.analyses.get(path)
            if known is not None:
                self._publish(path, known, version=self.session.texts[path].version)
            return known

    async def refresh(self, path: Path) -> None:
        """Check a text, and then the open texts that include it."""
        await self.fresh(path)
        others = self.session.dependents(path)
        for other in others:
            await self.fresh(other)
        if others:
            self.refresh_hints()

    def refresh_hints(self) -> None:
        """Let the editor ask for hints again: those of a text that it did not change may have changed."""
        if self.client.refreshes_hints:
            self.workspace_inlay_hint_refresh(None)

    def edit_of(self, changes: dict[str, list[types.TextEdit]]) -> types.WorkspaceEdit:
        """Edits by text, with the versions that they are of if the editor compares them with its own."""
        if not self.client.takes_versions:
            return types.WorkspaceEdit(changes=changes)
        edits = []
        for uri, of_text in changes.items():
            opened = self.session.texts.get(path_of(uri))
            version = opened.version if opened else None
            document = types.OptionalVersionedTextDocumentIdentifier(uri, version)
            edits.append(types.TextDocumentEdit(document, of_text))
        return types.WorkspaceEdit(document_changes=edits)

    def ruler(self, path: Path, analysis: Analysis) -> Ruler:
        line_end = self.session.texts[path].line_end
        return Ruler(analysis, self.workspace.position_codec, self.uris[path], line_end)

    def answer(self, answer: Answer, path: Path, analysis: Analysis | None, params: Any) -> Any:
        return answer(Asked(self, analysis, self.ruler(path, analysis)), params) if analysis else None

    def _publish(self, path: Path, analysis: Analysis, *, version: int | None) -> None:
        if path not in self.session.texts or self.shown.get(path) == (analysis, version):
            return
        self.shown[path] = (analysis, version)
        ruler = self.ruler(path, analysis)
        found = [protocol.diagnostic(finding, ruler) for finding in findings.findings(analysis)]
        params = types.PublishDiagnosticsParams(self.uris[path], found, version)
        self.text_document_publish_diagnostics(params)


def make_server() -> PlanServer:
    """A server with every feature."""
    server = PlanServer()
    server.feature(MALFORMED)(refuse)
    server.feature(OVERSIZED)(refuse_oversized)
    for name, handler in SYNCHRONIZATION:
        server.feature(name)(handler)
    for name, options, handler in QUESTIONS:
        server.feature(name, options)(handler)
    return server


def serve(*, questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer an editor until it closes `questions` or asks to end. Closes `answers`."""
    # stderr is the editor's log, and pygls notes every message there.
    logging.getLogger("pygls").setLevel(logging.ERROR)
    make_server().start_io(cast("BinaryIO", BoundedReader(questions)), answers)


async def did_open(server: PlanServer, params: types.DidOpenTextDocumentParams) -> None:
    opened = params.text_document
    await server.refresh(server.put(opened.uri, opened.text, version=opened.version))


async def did_change(server: PlanServer, params: types.DidChangeTextDocumentParams) -> None:
    changed = params.text_document
    text = server.workspace.get_text_document(changed.uri).source
    await server.refresh(server.put(changed.uri, text, version=changed.version))


async def did_save(server: PlanServer, params: types.DidSaveTextDocumentParams) -> None:
    """A save is a good time to look at models and at files that other programs write."""
    server.session.forget_models()
    for path in tuple(server.session.texts):
        await server.fresh(path)
    server.refresh_hints()


def did_close(server: PlanServer, params: types.DidCloseTextDocumentParams) -> None:
    path = path_of(params.text_document.uri)
    server.session.close(path)
    server.shown.pop(path, None)
    cleared = types.PublishDiagnosticsParams(params.text_document.uri, [])
    server.text_document_publish_diagnostics(cleared)


SYNCHRONIZATION = (
    (types.TEXT_DOCUMENT_DID_OPEN, did_open),
    (types.TEXT_DOCUMENT_DID_CHANGE, did_change),
    (types.TEXT_DOCUMENT_DID_SAVE, did_save),
    (types.TEXT_DOCUMENT_DID_CLOSE, did_close),
)


@record
class Asked:
    """A question about an open text, what is known of the text, and the client's way to measure places."""

    server: PlanServer
    analysis: Analysis
    ruler: Ruler

    def place(self, position: types.Position) -> tuple[int, int]:
        """The line and the column of a position, from 1."""
        return protocol.place_of(self.analysis.source, position, self.ruler.codec)


def code_actions(asked: Asked, params: types.CodeActionParams) -> list[types.CodeAction]:
    server, ruler = asked.server, asked.ruler
    if not server.client.takes_actions:
        return []
    first, last = params.range.start.line + 1, params.range.end.line + 1
    fixes = findings.quick_fixes(asked.analysis, first_line=first, last_line=last)
    offered: list[tuple[str, findings.Action]] = [(types.CodeActionKind.QuickFix.value, fix) for fix in fixes]
    every = findings.fix_all(asked.analysis)
    if every is not None:
        offered.append((_FIX_ALL, every))
    return [
        protocol.code_action(
            action, ruler, kind=kind, edit=server.edit_of(protocol.changes_of(action, ruler))
        )
        for kind, action in offered
        if _is_wanted(kind, params.context.only)
    ]


def _is_wanted(kind: str, only: Sequence[types.CodeActionKind | str] | None) -> bool:
    """Whether an editor that asks for `only` these kinds asks for one; `source` includes `source.fixAll`."""
    if only is None:
        return True
    wanted = (one.value if isinstance(one, types.CodeActionKind) else one for one in only)
    return any(f"{kind}.".startswith(f"{one}.") for one in wanted)


def hover(asked: Asked, params: types.HoverParams) -> types.Hover | None:
    shown = hovering.hover(asked.analysis, *asked.place(params.position))
    return None if shown is None else protocol.hover_text(shown, asked.ruler, client=asked.server.client)


def complete(asked: Asked, params: types.CompletionParams) -> list[types.CompletionItem]:
    """Answer without waiting for a check, because a text with half a name is rarely a plan yet."""
    items = completion.complete(asked.analysis, *asked.place(params.position))
    return [protocol.completion_item(item, asked.ruler, order=order) for order, item in enumerate(items)]


def go_to_definition(asked: Asked, params: types.DefinitionParams) -> types.Location | None:
    target = places.definition(asked.analysis, *asked.place(params.position))
    return asked.ruler.location(target.name) if target else None


def references(asked: Asked, params: types.ReferenceParams) -> list[types.Location]:
    uses = places.uses(asked.analysis, *asked.place(params.position))
    return [asked.ruler.location(span) for span in uses[0 if params.context.include_declaration else 1 :]]


def prepare_rename(asked: Asked, params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder:
    """The name under the cursor, which an editor shows before it asks for the new one."""
    line, column = asked.place(params.position)
    with refusals():
        uses = places.renamable(asked.analysis, line, column)
    touched = next(span for span in uses if span.line == line and span.column <= column <= span.end_column)
    return types.PrepareRenamePlaceholder(asked.ruler.range(touched), asked.analysis.text(touched))


def rename(asked: Asked, params: types.RenameParams) -> types.WorkspaceEdit:
    with refusals():
        uses = places.rename(asked.analysis, *asked.place(params.position), name=params.new_name)
    edits = [asked.ruler.edit(span, params.new_name) for span in uses]
    return asked.server.edit_of({params.text_document.uri: edits})


@contextmanager
def refusals() -> Iterator[None]:
    """An error's text becomes the answer."""
    try:
        yield
    except ValueError as error:
        raise JsonRpcInvalidParams(str(error)) from error


def format_text(asked: Asked, params: types.DocumentFormattingParams) -> list[types.TextEdit]:
    """Edits of lines, so cursors stay in place; none of a text that does not parse: its findings are why."""
    source = asked.analysis.source
    text, _ = format_source(source)
    return [asked.ruler.edit(*edit) for edit in line_edits(source, text)] if text is not None else []


def symbols(
    asked: Asked, params: types.DocumentSymbolParams
) -> list[types.DocumentSymbol] | list[types.SymbolInformation]:
    entries = outline.outline(asked.analysis.tree, asked.analysis.source)
    if not asked.server.client.takes_nested_symbols:
        return list(protocol.flat_symbols(entries, asked.ruler))
    return [protocol.symbol(entry, asked.ruler) for entry in entries]


def inlay_hints(asked: Asked, params: types.InlayHintParams) -> list[types.InlayHint]:
    first, last = params.range.start.line + 1, params.range.end.line + 1
    hints = (hint for hint in inlay.hints(asked.analysis) if first <= hint.line <= last)
    return [protocol.inlay_hint(hint, asked.ruler) for hint in hints]


Answer = Callable[[Asked, Any], Any]


def once_checked(answer: Answer) -> Any:
    """The handler of a question that waits for the check of its text, which may be closed meanwhile."""

    async def handler(server: PlanServer, params: Any) -> Any:
        path = path_of(params.text_document.uri)
        return server.answer(answer, path, await server.fresh(path), params)

    return handler


def at_once(answer: Answer) -> Any:
    """The handler of a question that is answered by the last check, maybe of some key strokes ago."""

    def handler(server: PlanServer, params: Any) -> Any:
        path = path_of(params.text_document.uri)
        return server.answer(answer, path, server.session.now(path), params)

    return handler


QUESTIONS: tuple[tuple[str, Any, Any], ...] = (
    (
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions([types.CodeActionKind.QuickFix, _FIX_ALL]),
        once_checked(code_actions),
    ),
    (types.TEXT_DOCUMENT_HOVER, None, once_checked(hover)),
    (types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(['"', ".", "{", ",", "="]), at_once(complete)),
    (types.TEXT_DOCUMENT_DEFINITION, None, once_checked(go_to_definition)),
    (types.TEXT_DOCUMENT_REFERENCES, None, once_checked(references)),
    (types.TEXT_DOCUMENT_PREPARE_RENAME, None, once_checked(prepare_rename)),
    (types.TEXT_DOCUMENT_RENAME, None, once_checked(rename)),
    (types.TEXT_DOCUMENT_FORMATTING, None, at_once(format_text)),
    (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, None, at_once(symbols)),
    (types.TEXT_DOCUMENT_INLAY_HINT, None, once_checked(inlay_hints)),
)
"""The requests that an editor may make, each with its options and its answer."""
