"""Lark's tree made into planc's: explicit, to keep Lark's types inside this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from lark import Token, Tree

from planc.record import record
from planc.source import Span
from planc.syntax import ast

LarkTree: TypeAlias = Tree[Token]


@record
class Builder:
    """Builds nodes whose spans name `file`. Depth is bounded by the parser's budget."""

    file: str

    def statements(self, children: Sequence[LarkTree | Token | None]) -> tuple[ast.Statement, ...]:
        return tuple(self._statement(child) for child in children if isinstance(child, Tree))

    def assignment(self, tree: LarkTree) -> ast.Assignment:
        target, value = tree.children
        return ast.Assignment(self._path(_tree(target)), self._value(_tree(value)), self._span(tree))

    def _statement(self, tree: LarkTree) -> ast.Statement:
        parts = tree.children
        match tree.data:
            case "extends":
                return ast.Extends(self._text(parts[0]), self._span(tree))
            case "import":
                return ast.Import(self._text(parts[0]), self._name(parts[1]), self._span(tree))
            case "extension":
                return ast.Extension(self._text(parts[0]), self._span(tree))
            case "use":
                return ast.Use(self._path(_tree(parts[0])), self._span(tree))
            case "param":
                return ast.Param(
                    self._name(parts[0]),
                    self._type(_tree(parts[1])),
                    self._value(_tree(parts[2])),
                    self._span(tree),
                )
            case "block":
                return self._block(tree)
            case "bare_block":
                return ast.Block(self._name(parts[0]), self._text(parts[1]), (), (), self._span(tree))
            case "setting":
                path, value = self._path(_tree(parts[1])), self._value(_tree(parts[2]))
                return ast.Setting(path, value, parts[0] is not None, self._span(tree))
            case "rule":
                patterns = tuple(self._text(pattern) for pattern in _tree(parts[1]).children)
                action = self._value(_tree(parts[2]))
                assert isinstance(action, ast.Call | ast.Ref), "the grammar admits no other action"
                return ast.Rule(patterns, action, parts[0] is not None, self._span(tree))
            case "directive":
                return self._directive(tree)
            case "comparison":
                value = self._value(_tree(parts[2]))
                return ast.Comparison(self._path(_tree(parts[0])), str(parts[1]), value, self._span(tree))
            case unknown:
                raise AssertionError(f"unhandled statement {unknown}")

    def _directive(self, tree: LarkTree) -> ast.Directive:
        name = self._name(tree.children[0])
        return ast.Directive(name, self._call(tree) if len(tree.children) > 1 else None)

    def _block(self, tree: LarkTree) -> ast.Block:
        kind, label, on, *body = tree.children
        return ast.Block(
            self._name(kind),
            self._text(label) if label is not None else None,
            tuple(self._name(name) for name in on.children) if isinstance(on, Tree) else (),
            self.statements(body),
            self._span(tree),
        )

    def _type(self, tree: LarkTree) -> ast.ParamType:
        name, low, high = tree.children
        bounds = [self._number(bound) if isinstance(bound, Tree) else None for bound in (low, high)]
        return ast.ParamType(self._name(name), bounds[0], bounds[1])

    def _value(self, tree: LarkTree) -> ast.Value:
        match tree.data:
            case "number":
                return self._number(tree)
            case "text":
                return self._text(tree.children[0])
            case "bool":
                return ast.Bool(tree.children[0] == "true", self._span(tree))
            case "ref":
                return ast.Ref(self._name(tree.children[0]))
            case "list":
                values = tuple(self._value(_tree(child)) for child in tree.children if child is not None)
                return ast.Items(values, self._span(tree))
            case "call":
                return self._call(tree)
            case "sum" | "product":
                operands = tuple(self._value(_tree(child)) for child in tree.children[::2])
                return ast.Arithmetic(operands, tuple(map(str, tree.children[1::2])), self._span(tree))
            case unknown:
                raise AssertionError(f"unhandled value {unknown}")

    def _call(self, tree: LarkTree) -> ast.Call:
        arguments = (self._argument(_tree(child)) for child in tree.children[1:] if child is not None)
        return ast.Call(self._name(tree.children[0]), tuple(arguments), self._span(tree))

    def _argument(self, tree: LarkTree) -> ast.Argument:
        name, value = tree.children
        return ast.Argument(
            self._name(name) if name is not None else None, self._value(_tree(value)), self._span(tree)
        )

    def _number(self, tree: LarkTree) -> ast.Number:
        token, unit = tree.children
        text = str(token)
        is_int = isinstance(token, Token) and token.type == "INT"
        value = int(text.replace("_", "")) if is_int else float(text.replace("_", ""))
        return ast.Number(value, self._name(unit) if unit is not None else None, text, self._span(tree))

    def _path(self, tree: LarkTree) -> ast.Name:
        return ast.Name(".".join(str(part) for part in tree.children), self._span(tree))

    def _name(self, token: LarkTree | Token | None) -> ast.Name:
        return ast.Name(str(token), self._token_span(token))

    def _text(self, token: LarkTree | Token | None) -> ast.Text:
        return ast.Text(str(token)[1:-1], self._token_span(token))

    def _token_span(self, token: LarkTree | Token | None) -> Span:
        assert isinstance(token, Token)
        return _span(self.file, token)

    def _span(self, tree: LarkTree) -> Span:
        return _span(self.file, tree.meta)


def _span(file: str, place: object) -> Span:
    """Lark's meta and tokens carry the same position attributes, typed only on one of them."""
    line, column, end_line, end_column = (
        getattr(place, name) for name in ("line", "column", "end_line", "end_column")
    )
    return Span(file, line, column, end_line, end_column)


def _tree(child: LarkTree | Token | None) -> LarkTree:
    assert isinstance(child, Tree)
    return child
