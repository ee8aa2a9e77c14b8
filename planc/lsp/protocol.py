"""Values of planc as values of the protocol. Positions become the client's: from 0, in its own units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lsprotocol import types
from pygls.uris import to_fs_path
from pygls.workspace import PositionCodec

from planc.diagnostics import Severity, pages
from planc.lsp import completion, hover, inlay, outline
from planc.lsp.client import Client
from planc.lsp.findings import Action, Finding
from planc.lsp.session import Analysis
from planc.record import record
from planc.source import SourceFile, Span

_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.NOTE: types.DiagnosticSeverity.Information,
}


def path_of(uri: str) -> Path:
    """The path of a text; a text that is not saved yet is in the current directory, which may be gone."""
    found = to_fs_path(uri) if uri.startswith("file:") else None
    return Path(found or uri.rpartition("/")[2].rpartition(":")[2])


def uri_of(path: Path) -> str:
    return path.absolute().as_uri()


@record
class Ruler:
    """Places in an analysis's texts, measured as the client does."""

    analysis: Analysis
    codec: PositionCodec
    uri: str
    """The open text's, as the client wrote it."""
    line_end: str

    def range(self, span: Span) -> types.Range:
        lines = self._lines(span.file)
        return types.Range(
            _position(lines, span.line, span.column, self.codec),
            _position(lines, span.end_line, span.end_column, self.codec),
        )

    def edit(self, span: Span, text: str) -> types.TextEdit:
        return types.TextEdit(self.range(span), text.replace("\n", self.line_end))

    def location(self, span: Span) -> types.Location:
        return types.Location(self.uri_of(span.file), self.range(span))

    def uri_of(self, file: str) -> str:
        is_open_text = file == self.analysis.source.name
        return self.uri if is_open_text else uri_of(self.analysis.path(file))

    def _lines(self, file: str) -> Sequence[str]:
        source = self.analysis.checked.sources.get(file)
        if file == self.analysis.source.name or source is None:
            return self.analysis.source.lines
        return source.lines


def _position(lines: Sequence[str], line: int, column: int, codec: PositionCodec) -> types.Position:
    line = max(1, min(line, len(lines)))
    before = lines[line - 1][: column - 1]
    return types.Position(line - 1, len(before) if before.isascii() else codec.client_num_units(before))


def place_of(source: SourceFile, position: types.Position, codec: PositionCodec) -> tuple[int, int]:
    """The line and the column of a position, from 1; past the end of a line or of the text, that end."""
    lines = source.lines
    if position.line >= len(lines):
        return len(lines), len(lines[-1]) + 1
    line = lines[position.line]
    if line.isascii():
        return position.line + 1, min(position.character, len(line)) + 1
    num_units = 0
    for column, character in enumerate(line, 1):
        if num_units >= position.character:
            return position.line + 1, column
        num_units += codec.client_num_units(character)
    return position.line + 1, len(line) + 1


def diagnostic(finding: Finding, ruler: Ruler) -> types.Diagnostic:
    code = finding.diagnostic.code.code
    return types.Diagnostic(
        range=ruler.range(finding.span),
        message=finding.message,
        severity=_SEVERITIES[finding.severity],
        code=code,
        code_description=types.CodeDescription(pages.url(code)),
        source="planc",
        related_information=[
            types.DiagnosticRelatedInformation(ruler.location(label.span), label.text)
            for label in finding.related
        ],
    )


def changes_of(action: Action, ruler: Ruler) -> dict[str, list[types.TextEdit]]:
    """An action's edits, by the texts that they are of."""
    changes: dict[str, list[types.TextEdit]] = {}
    for edit in action.edits:
        uri = ruler.uri_of(edit.span.file)
        changes.setdefault(uri, []).append(ruler.edit(edit.span, edit.replacement))
    return changes


def code_action(
    action: Action, ruler: Ruler, *, kind: types.CodeActionKind | str, edit: types.WorkspaceEdit
) -> types.CodeAction:
    return types.CodeAction(
        title=action.title,
        kind=kind,
        diagnostics=[diagnostic(action.finding, ruler)] if action.finding else None,
        is_preferred=action.is_preferred,
        edit=edit,
    )


_ITEM_KINDS = {
    completion.Kind.BLOCK: types.CompletionItemKind.Struct,
    completion.Kind.CALL: types.CompletionItemKind.Function,
    completion.Kind.FACT: types.CompletionItemKind.Property,
    completion.Kind.KEY: types.CompletionItemKind.Property,
    completion.Kind.KEYWORD: types.CompletionItemKind.Keyword,
    completion.Kind.MODULE: types.CompletionItemKind.Module,
    completion.Kind.PARAM: types.CompletionItemKind.Variable,
    completion.Kind.UNIT: types.CompletionItemKind.Unit,
    completion.Kind.WORD: types.CompletionItemKind.EnumMember,
}


def completion_item(item: completion.Item, ruler: Ruler, *, order: int) -> types.CompletionItem:
    return types.CompletionItem(
        label=item.label,
        kind=_ITEM_KINDS[item.kind],
        detail=item.detail or None,
        documentation=item.doc or None,
        sort_text=f"{order:04}",
        filter_text=item.label,
        text_edit=types.TextEdit(ruler.range(item.replaces), item.text),
    )


def hover_text(shown: hover.Hover, ruler: Ruler, *, client: Client) -> types.Hover:
    """Plain text, or the same in fences of Markdown, where nothing is markup and columns stay aligned."""
    blocks = [block for block in ("\n".join(shown.paragraphs), shown.table.rstrip("\n")) if block]
    kind = types.MarkupKind.Markdown if client.takes_markdown else types.MarkupKind.PlainText
    if client.takes_markdown:
        blocks = [f"```text\n{block}\n```" for block in blocks]
    return types.Hover(types.MarkupContent(kind, "\n\n".join(blocks)), ruler.range(shown.span))


_SYMBOL_KINDS = {
    outline.Kind.BLOCK: types.SymbolKind.Struct,
    outline.Kind.FILE: types.SymbolKind.File,
    outline.Kind.KEY: types.SymbolKind.Property,
    outline.Kind.PARAM: types.SymbolKind.Variable,
    outline.Kind.RULE: types.SymbolKind.Function,
}


def symbol(entry: outline.Symbol, ruler: Ruler) -> types.DocumentSymbol:
    return types.DocumentSymbol(
        name=entry.name,
        kind=_SYMBOL_KINDS[entry.kind],
        range=ruler.range(entry.whole),
        selection_range=ruler.range(entry.name_span),
        detail=entry.detail,
        children=[symbol(child, ruler) for child in entry.children],
    )


def flat_symbols(
    symbols: Sequence[outline.Symbol], ruler: Ruler, *, inside: str | None = None
) -> Iterator[types.SymbolInformation]:
    """The outline without nesting: each entry names what it is in."""
    for one in symbols:
        place = ruler.location(one.name_span)
        yield types.SymbolInformation(place, one.name, _SYMBOL_KINDS[one.kind], container_name=inside)
        yield from flat_symbols(one.children, ruler, inside=one.name)


def inlay_hint(hint: inlay.Hint, ruler: Ruler) -> types.InlayHint:
    name, line = ruler.analysis.source.name, ruler.analysis.source.lines[hint.line - 1]
    end = Span(name, hint.line, len(line) + 1, hint.line, len(line) + 1)
    return types.InlayHint(ruler.range(end).start, hint.text, padding_left=True)
