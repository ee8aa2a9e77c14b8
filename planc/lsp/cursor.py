"""The surroundings of a place: in a text that may not parse, and in its syntax tree.

Half-written lines are what an editor has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from planc.lsp.language import Opened
from planc.plan.blocks import BLOCKS
from planc.record import record
from planc.source import SourceFile, Span
from planc.syntax import ast
from planc.syntax.tokens import Token, lines

_IN_COMMENT = re.compile(r'(?:[^"#]|"[^"]*")*#')
_TOP = (*BLOCKS, "expect", "param", "extends", "import", "extension")


@record
class Cursor:
    """A place in a text, seen from the left.

    `statement` are the tokens of the statement at the place, without brackets that are closed and without
    `word`, which is written up to the place. `calls` are the open calls in it, outermost first: what the
    tokens before each are, with the call's name last. In a string, `string` is its text so far.
    """

    line: int
    column: int
    blocks: tuple[Opened, ...]
    calls: tuple[tuple[str, ...], ...]
    statement: tuple[str, ...]
    word: str
    string: str | None
    in_comment: bool


@dataclass(slots=True)
class _Frame:
    """An open bracket, and what stood before it in its statement or argument."""

    bracket: str
    before: list[Token]


@dataclass(slots=True)
class _Reader:
    frames: list[_Frame] = field(default_factory=list)
    current: list[Token] = field(default_factory=list)

    def start_line(self, tokens: Sequence[Token], *, indent: int) -> None:
        """A new line ends a statement outside ( ) and [ ]; the start of a block at the margin ends all."""
        if indent == 0 and tokens[0].text in _TOP:
            self.frames.clear()
        if not self.frames or self.frames[-1].bracket == "{":
            self.current = []

    def add(self, token: Token) -> None:
        if token.text in ("{", "(", "["):
            self.frames.append(_Frame(token.text, self.current))
            self.current = []
        elif token.text == "}":
            self._close_block()
        elif token.text in (")", "]"):
            if self.frames and self.frames[-1].bracket != "{":
                self.current = [*self.frames.pop().before, Token("closed", "()", token.start)]
        elif token.text == "," and not _is_head(self.current):
            self.current = []
        else:
            self.current.append(token)

    def _close_block(self) -> None:
        """Close the innermost block, and with it the brackets that a half-written line has left open."""
        self.current = []
        while self.frames:
            if self.frames.pop().bracket == "{":
                break

    def blocks(self) -> Iterator[Opened]:
        for frame in self.frames:
            if frame.bracket == "{" and frame.before:
                kind, *others = frame.before
                label = others[0].text.strip('"') if others and others[0].kind == "string" else ""
                yield kind.text, label


def _is_head(tokens: Sequence[Token]) -> bool:
    """Whether these are a block's head up to its mesh dims, which commas separate."""
    return len(tokens) > 2 and tokens[1].text == "on"


def cursor(source: SourceFile, line: int, column: int) -> Cursor:
    """Read the text to the left of a place; line and column count from 1."""
    written = source.lines[: line - 1]
    rest = source.lines[line - 1][: column - 1]
    reader = _Reader()
    last: Token | None = None
    text = "\n".join((*written, rest))
    for written_line in lines(text):
        reader.start_line(written_line.tokens, indent=written_line.indent)
        for token in written_line.tokens:
            reader.add(token)
            last = token
        if written_line.number < line:
            last = None
    if last is None or last.start < len(text) - len(rest):
        reader.start_line((Token("end", "", 0),), indent=1)
    touches = last is not None and last.end == len(text) and last in reader.current
    word = string = None
    if touches and last is not None and last.kind in ("word", "open"):
        reader.current.remove(last)
        word, string = (last.text, None) if last.kind == "word" else (None, last.text[1:])
    inner = [index for index, frame in enumerate(reader.frames) if frame.bracket == "{"]
    calls = reader.frames[inner[-1] + 1 if inner else 0 :]
    return Cursor(
        line=line,
        column=column,
        blocks=tuple(reader.blocks()),
        calls=tuple(tuple(token.text for token in frame.before) for frame in calls),
        statement=tuple(token.text for token in reader.current),
        word=word or "",
        string=string,
        in_comment=_IN_COMMENT.match(rest) is not None,
    )


def path_to(tree: ast.PlanFile, line: int, column: int) -> tuple[Any, ...]:
    """The nodes around a place, outermost first. The place after a node's last character is in it too."""
    path: list[Any] = []
    inner: object | None = tree
    while inner is not None:
        path.append(inner)
        inner = next((child for child in _children(inner) if _holds(child, line, column)), None)
    return tuple(path)


def blocks_of(path: tuple[Any, ...]) -> tuple[Opened, ...]:
    """The blocks around a place, as the language names them."""
    blocks = (node for node in path if isinstance(node, ast.Block))
    return tuple((block.kind.text, block.label.value if block.label else "") for block in blocks)


def refs(node: object) -> Iterator[ast.Ref]:
    """Every bare word below a node."""
    if isinstance(node, ast.Ref):
        yield node
    for child in _children(node):
        yield from refs(child)


def _children(node: object) -> Iterator[Any]:
    if not is_dataclass(node):
        return
    for one in fields(node):
        value = getattr(node, one.name)
        for child in value if isinstance(value, tuple) else (value,):
            if is_dataclass(child) and not isinstance(child, Span):
                yield child


def _holds(node: Any, line: int, column: int) -> bool:
    span = _span(node)
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


def _span(node: Any) -> Span:
    span: Span = node.name.span if isinstance(node, ast.ParamType) else node.span
    return span
