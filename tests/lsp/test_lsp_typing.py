"""Plans typed character by character: nothing that an editor asks of a half-written text fails."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from lsprotocol import types

from planc.fmt.format import format_source
from planc.lsp.completion import complete
from planc.lsp.findings import findings, fix_all, quick_fixes
from planc.lsp.hover import hover
from planc.lsp.inlay import hints
from planc.lsp.outline import outline
from planc.lsp.places import definition, uses
from planc.lsp.session import Session
from tests.lsp.editor import editing, uri_of

PLANS = Path(__file__).parents[2] / "plans"
PATHS = sorted(PLANS.rglob("*.plan"))
SAMPLES = 6
"""Key strokes of each plan: any may break, and all take minutes."""


def ask_all(session: Session, path: Path, text: str) -> None:
    """Everything that an editor asks, at the end of what is typed and at another place."""
    session.put(path, text)
    known = session.now(path)
    assert known is not None
    lines = known.source.lines
    complete(known, len(lines), len(lines[-1]) + 1)
    analysis = session.analyze(session.texts[path])
    session.keep(path, analysis)
    found = tuple(findings(analysis))
    assert all(one.span.file == path.name for one in found)
    assert all(1 <= one.span.line <= len(lines) for one in found)
    for action in (*quick_fixes(analysis, first_line=1, last_line=len(lines)), fix_all(analysis)):
        assert action is None or action.title
    assert outline(analysis.tree, analysis.source) or analysis.model is None
    assert analysis.checked.graph is None or tuple(hints(analysis))
    format_source(analysis.source)
    for line in {len(lines), len(lines) // 2 or 1}:
        for column in (1, len(lines[line - 1]) // 2 + 1, len(lines[line - 1]) + 1):
            hover(analysis, line, column)
            definition(analysis, line, column)
            uses(analysis, line, column)
            complete(analysis, line, column)


@pytest.mark.sampled(every=28)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_no_half_written_plan_makes_an_answer_fail(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    draw = random.Random(path.name)
    session = Session()
    for end in sorted(draw.sample(range(len(text)), min(SAMPLES, len(text)))):
        ask_all(session, path, text[:end])
        # The same line in a plan whose rest is there already.
        ask_all(session, path, text[:end] + text[text.find("\n", end) :])


def test_a_server_answers_all_along_a_plan_that_is_typed() -> None:
    path = PLANS / "quickstart.plan"
    text = path.read_text(encoding="utf-8")
    document = types.TextDocumentIdentifier(uri_of(path))
    with editing() as editor:
        editor.open(path, "")
        for end in range(0, len(text), 29):
            editor.type(path, text[:end], waits=False)
            place = types.Position(text.count("\n", 0, end), end - text.rfind("\n", 0, end) - 1)
            editor.ask("completion", types.CompletionParams(document, place))
            editor.ask("document_symbol", types.DocumentSymbolParams(document))
        assert editor.type(path, text) == []
        assert editor.errors == []
