"""Syntax tree and comments to document: all that the formatter knows of the language.

A new kind of statement is one arm in `_statement`; a new kind of value is one in `_value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, assert_never

from planc.fmt.document import (
    HARD_LINE,
    SOFT_LINE,
    SPACE_LINE,
    Concat,
    Doc,
    Group,
    IfBroken,
    Remark,
    concat,
    group,
    indent,
)
from planc.record import record
from planc.source import Span
from planc.syntax import ast
from planc.syntax.tokens import Comment

Position: TypeAlias = tuple[int, int]
"""Line and column, from 1."""


def start(span: Span) -> Position:
    return span.line, span.column


def end(span: Span) -> Position:
    return span.end_line, span.end_column


class PendingComments:
    """Comments not yet placed. Each is taken once and in order: none moves past another."""

    def __init__(self, comments: tuple[Comment, ...]) -> None:
        self._comments = comments
        self._num_taken = 0

    def before(self, position: Position) -> Iterator[Comment]:
        """Takes those that start before a position."""
        while self._num_taken < len(self._comments):
            comment = self._comments[self._num_taken]
            if start(comment.span) >= position:
                return
            self._num_taken += 1
            yield comment

    def on_line(self, line: int, *, before: Position) -> Comment | None:
        """Take the next comment if it is on this line, before a position: it belongs to what ends there."""
        if self._num_taken < len(self._comments):
            comment = self._comments[self._num_taken]
            if comment.span.line == line and start(comment.span) < before:
                self._num_taken += 1
                return comment
        return None


Item: TypeAlias = ast.Argument | ast.Value
"""An item between commas in ( ) and [ ]."""


@record
class _Entry:
    """An entry that starts a line of its own in a block, and the lines of the source that it took."""

    doc: Doc
    line: int
    end_line: int


def build(file: ast.PlanFile, *, comments: Sequence[Comment]) -> Doc:
    """The document of a file, with all of its comments. Empty for a file with nothing in it."""
    entries = tuple(_Builder(PendingComments(tuple(comments))).entries(file.statements, limit=end(file.span)))
    return concat(_lines(entries), HARD_LINE) if entries else ""


@record
class _Builder:
    """Builds in the order of the source, taking comments as it passes them."""

    comments: PendingComments

    def entries(self, statements: Sequence[ast.Statement], *, limit: Position) -> Iterator[_Entry]:
        """The statements of a block or a file that ends at `limit`, comments between them."""
        nexts = (*(start(statement.span) for statement in statements[1:]), limit)
        for statement, next_start in zip(statements, nexts, strict=False):
            span = statement.span
            yield from self._own_lines(start(span))
            doc = self._statement(statement)
            remark = self._remark(span.end_line, before=next_start)
            yield _Entry(concat(doc, *remark), span.line, span.end_line)
        yield from self._own_lines(limit)

    def _own_lines(self, limit: Position) -> Iterator[_Entry]:
        for comment in self.comments.before(limit):
            yield _Entry(comment.text, comment.span.line, comment.span.line)

    def _remark(self, line: int, *, before: Position) -> tuple[Remark, ...]:
        comment = self.comments.on_line(line, before=before)
        return (Remark(comment.text),) if comment else ()

    def _above(self, position: Position) -> tuple[Doc, ...]:
        """Comments up to a position, each on its own line."""
        return tuple(doc for comment in self.comments.before(position) for doc in (comment.text, HARD_LINE))

    def _statement(self, statement: ast.Statement) -> Doc:
        match statement:
            case ast.Setting(name, value, override, _):
                return concat(_override(override), name.text, " = ", self._value(value))
            case ast.Rule(_, action, override, _):
                patterns = self._patterns(statement)
                return concat(_override(override), patterns, " -> ", self._value(action))
            case ast.Extends(path, _):
                return f"extends {_text(path)}"
            case ast.Import(path, alias, _):
                return f"import {_text(path)} as {alias.text}"
            case ast.Extension(path, _):
                return f"extension {_text(path)}"
            case ast.Use(name, _):
                return f"use {name.text}"
            case ast.Directive(name, call):
                return self._value(call) if call else name.text
            case ast.Comparison(subject, operator, value, _):
                return concat(subject.text, f" {operator} ", self._value(value))
            case ast.Param(name, type_, default, _):
                # The bounds of a type stay on one line; a comment between them goes above.
                above = self._above(start(default.span))
                return concat(*above, f"param {name.text}: {_type(type_)} = ", self._value(default))
            case ast.Block():
                return self._block(statement)
            case _:
                assert_never(statement)

    def _block(self, block: ast.Block) -> Doc:
        """On one line where the author wrote it so and it fits; else a line for each statement."""
        limit = end(block.span)
        first = start(block.body[0].span) if block.body else limit
        remark = self._remark(block.span.line, before=first)
        opening = concat(_header(block), " {", *remark)
        entries = tuple(self.entries(block.body, limit=limit))
        if block.span.line == block.span.end_line and entries:
            separator = concat(IfBroken("", ","), SPACE_LINE)
            body = _joined([entry.doc for entry in entries], separator)
            return group(opening, indent(SPACE_LINE, body), SPACE_LINE, "}")
        if entries:
            return group(opening, indent(HARD_LINE, _lines(entries)), HARD_LINE, "}")
        if not remark and block.label and not block.on:
            return _header(block)
        return concat(opening, HARD_LINE, "}") if remark else concat(opening, "}")

    def _patterns(self, rule: ast.Rule) -> Doc:
        """One pattern stands without brackets, unless they hold a comment: it could stand nowhere else."""
        limit = start(rule.action.span)
        listed = self._bracketed("[", rule.patterns, "]", line=rule.span.line, limit=limit)
        has_comment = isinstance(listed, Group) and listed.is_broken
        return listed if len(rule.patterns) > 1 or has_comment else _text(rule.patterns[0])

    def _value(self, value: ast.Value) -> Doc:
        match value:
            case ast.Number():
                return _number(value)
            case ast.Text():
                return _text(value)
            case ast.Bool(is_true, _):
                return "true" if is_true else "false"
            case ast.Ref(name):
                return name.text
            case ast.Call(name, arguments, span):
                return self._bracketed(f"{name.text}(", arguments, ")", line=span.line, limit=end(span))
            case ast.Items(values, span):
                return self._bracketed("[", values, "]", line=span.line, limit=end(span))
            case ast.Arithmetic(operands, operators):
                written = [self._operand(operand, of=value) for operand in operands]
                rest = zip(operators, written[1:], strict=True)
                return concat(
                    written[0], *(part for sign, operand in rest for part in (f" {sign} ", operand))
                )
            case _:
                assert_never(value)

    def _operand(self, value: ast.Value, *, of: ast.Arithmetic) -> Doc:
        """An operand, in brackets unless it is a product in a sum."""
        doc = self._value(value)
        is_plain = not isinstance(value, ast.Arithmetic) or (of.is_sum and not value.is_sum)
        return doc if is_plain else concat("(", doc, ")")

    def _item(self, item: Item) -> Doc:
        if not isinstance(item, ast.Argument):
            return self._value(item)
        name = f"{item.name.text} = " if item.name else ""
        return concat(name, self._value(item.value))

    def _bracketed(
        self, opening: str, items: Sequence[Item], closing: str, *, line: int, limit: Position
    ) -> Doc:
        """Items on one line if they fit and no comment stands among them, else a line for each.

        `line` is where the bracket opens, `limit` a position after it closes.
        """
        nexts = (*(start(item.span) for item in items), limit)
        remark = self._remark(line, before=nexts[0])
        inner: list[Doc] = []
        for item, next_start in zip(items, nexts[1:], strict=True):
            inner.extend((SPACE_LINE if inner else SOFT_LINE, *self._above(_bracket(item)), self._item(item)))
            inner.append(IfBroken(",", "") if item is items[-1] else ",")
            inner.extend(self._remark(item.span.end_line, before=next_start))
        for comment in self.comments.before(limit):
            inner.extend((HARD_LINE, comment.text))
        if not inner and not remark:
            return opening + closing
        return group(opening, *remark, indent(*inner), SOFT_LINE, closing)


def _bracket(item: Item) -> Position:
    """Return where an item's own brackets may start to hold comments; earlier ones go above the item."""
    match item:
        case ast.Argument(_, value, _):
            return _bracket(value)
        case ast.Number(span=span):
            return end(span)
        case _:
            return start(item.span)


def _lines(entries: Sequence[_Entry]) -> Concat:
    """Entries on lines of their own; where the source has blank lines between two, one stays."""
    parts: list[Doc] = []
    for previous, entry in zip((None, *entries), entries, strict=False):
        if previous is not None:
            parts.append(HARD_LINE)
            parts.extend([HARD_LINE] if entry.line - previous.end_line > 1 else [])
        parts.append(entry.doc)
    return Concat(tuple(parts))


def _joined(docs: Sequence[Doc], separator: Doc) -> Concat:
    return Concat(tuple(part for doc in docs for part in (separator, doc))[1:])


def _header(block: ast.Block) -> str:
    label = f" {_text(block.label)}" if block.label else ""
    on = f" on {', '.join(name.text for name in block.on)}" if block.on else ""
    return f"{block.kind.text}{label}{on}"


def _type(type_: ast.ParamType) -> str:
    if type_.low is None or type_.high is None:
        return type_.name.text
    return f"{type_.name.text}({_number(type_.low)}..{_number(type_.high)})"


def _override(is_override: bool) -> str:
    return "override " if is_override else ""


def _number(number: ast.Number) -> str:
    return f"{number.text} {number.unit.text}" if number.unit else number.text


def _text(text: ast.Text) -> str:
    return f'"{text.value}"'
