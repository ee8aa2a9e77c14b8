"""The server: what an editor asks, over stdin and stdout, answered by the other modules of this package."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from planc import __version__
from planc.lsp import actions, findings, protocol
from planc.lsp.protocol import Ruler, path_of
from planc.lsp.session import Analysis, Session

_FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.planc"


class PlanServer(LanguageServer):
    """A session with an editor.

    Checks run one at a time in a thread, so a slow one delays no other answer. A text that changes during a
    check is checked again when the check ends, however many key strokes that were.
    """

    def __init__(self) -> None:
        super().__init__("planc", __version__, types.TextDocumentSyncKind.Full)
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

    async def fresh(self, path: Path) -> Analysis | None:
        """The analysis of the text as it is now, whose findings are then in the editor; None once closed."""
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
        for other in self.session.dependents(path):
            await self.fresh(other)

    def ruler(self, path: Path, analysis: Analysis) -> Ruler:
        return Ruler(analysis, self.workspace.position_codec, self.uris[path])

    def _publish(self, path: Path, analysis: Analysis, *, version: int | None) -> None:
        if path not in self.session.texts or self.shown.get(path) == (analysis, version):
            return
        self.shown[path] = (analysis, version)
        ruler = self.ruler(path, analysis)
        found = [protocol.diagnostic(one, ruler) for one in findings.findings(analysis)]
        params = types.PublishDiagnosticsParams(self.uris[path], found, version)
        self.text_document_publish_diagnostics(params)


def make_server() -> PlanServer:
    """A server with every feature."""
    server = PlanServer()
    for name, handler in SYNCHRONIZATION:
        server.feature(name)(handler)
    actions_options = types.CodeActionOptions([types.CodeActionKind.QuickFix, _FIX_ALL])
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION, actions_options)(code_actions)
    return server


def serve(*, questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer an editor until it closes `questions` or asks to end. Closes `answers`."""
    # Handlers that have no answer are no error: stderr is the editor's log.
    logging.getLogger("pygls").setLevel(logging.ERROR)
    make_server().start_io(questions, answers)


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


async def code_actions(server: PlanServer, params: types.CodeActionParams) -> list[types.CodeAction]:
    path = path_of(params.text_document.uri)
    analysis = await server.fresh(path)
    if analysis is None:
        return []
    ruler = server.ruler(path, analysis)
    first, last = params.range.start.line + 1, params.range.end.line + 1
    fixes = actions.quick_fixes(analysis, first_line=first, last_line=last)
    found = [protocol.code_action(one, ruler, kind=types.CodeActionKind.QuickFix) for one in fixes]
    every = actions.fix_all(analysis)
    if every is not None:
        found.append(protocol.code_action(every, ruler, kind=_FIX_ALL))
    return found
