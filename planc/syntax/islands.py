"""A text that does not parse, cut where its statements most likely start and end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile

from planc.record import record
from planc.syntax.tokens import Line, Token, lines

_PAIRS = {")": "(", "]": "[", "}": "{"}
_BINDS = ("=", "->", "=>", ":", ":=", "==", "!=", "<=", ">=", "<", ">")
_CONTINUES = ("->", "=>", "=", ",", ")", "]")
"""Tokens that can't start a statement: a line that starts with one belongs to the line before."""
_MAX_LOOK_AHEAD = 200


class Kind(StrEnum):
    STATEMENT = "statement"
    HEADER = "header"
    CLOSER = "closer"


@record
class Island:
    """A statement, the head of a block up to its brace, or what closes one: a brace, or a lone `)` or `]`.

    `indent` is that of the first line. `is_first` where nothing but closing braces stands before it there.
    """

    kind: Kind
    tokens: tuple[Token, ...]
    indent: int
    is_first: bool

    @property
    def start(self) -> int:
        return self.tokens[0].start

    @property
    def end(self) -> int:
        return self.tokens[-1].end

    @property
    def names_a_block(self) -> bool:
        """Whether this is the head of a block but for its brace: `mesh`, `fsdp on dp_shard`, `mesh:`."""
        is_yaml = len(self.tokens) > 1 and self.tokens[-1].text == ":"
        words = self.tokens[:-1] if is_yaml else self.tokens
        has_shape = len(words) == 1 or words[1].text == "on" or words[1].kind == "string"
        return self.kind is Kind.STATEMENT and has_shape and _is_head(words)


def islands(text: str) -> tuple[Island, ...]:
    """The statements, heads and closing braces in the order of the text."""
    return tuple(island for statement in _joined(tuple(lines(text))) for island in statement.cut())


@dataclass(slots=True)
class _Statement:
    """Lines that belong together, with the brackets which they leave open and those that close nothing."""

    indent: int
    tokens: list[Token] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
    num_leading: int = 0
    """The number of closing braces that the first line starts with."""

    def add(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            index = len(self.tokens)
            self.num_leading += token.text == "}" and self.num_leading == index
            self.tokens.append(token)
            if token.text in _PAIRS.values():
                self.opened.append(index)
            elif token.text in _PAIRS:
                self._close(index, is_last=token is tokens[-1])
            elif token.kind == "open":
                self._close_in_string(token, index)

    def _close(self, index: int, *, is_last: bool) -> None:
        """A bracket of the wrong kind closes too: the author meant something by it."""
        if self.tokens[index].text == "}":
            braces = [place for place, at in enumerate(self.opened) if self.tokens[at].text == "{"]
            if braces:
                del self.opened[braces[-1] :]
            elif self.opened:
                self.opened.pop()
            else:
                self.strays.append(index)
        elif self.opened and (is_last or not self._is_block(self.opened[-1])):
            self.opened.pop()

    def _is_block(self, index: int) -> bool:
        return self.tokens[index].text == "{" and _is_head(self.tokens[:index])

    def _close_in_string(self, token: Token, index: int) -> None:
        """A string without its end has swallowed the rest of the line, and with it perhaps a brace."""
        swallowed = token.text.partition(" #")[0].rstrip()
        surplus = swallowed.count("{") - swallowed.count("}")
        if surplus > 0 and swallowed.endswith("{") and _is_head(self.tokens[:index]):
            self.opened.append(index)
        elif surplus < 0 and swallowed.endswith("}"):
            self._close_in_string_at(index)

    def _close_in_string_at(self, index: int) -> None:
        braces = [place for place, at in enumerate(self.opened) if self.tokens[at].text == "{"]
        if braces:
            del self.opened[braces[-1] :]
        else:
            self.strays.append(index)

    @property
    def is_open(self) -> bool:
        """Whether a list or a call continues in the next line."""
        return bool(self.opened) and self.tokens[-1].kind != "open" and not self._opens_block(self.opened[-1])

    def _opens_block(self, index: int) -> bool:
        if self.tokens[index].text in "([":  # `mesh (`: the wrong bracket for a block
            return index == len(self.tokens) - 1 and _is_head(self.tokens[:index])
        return True

    def cut(self) -> Iterator[Island]:
        """The islands, cut after every brace that opens a block and around every one that closes one."""
        heads = list(takewhile(self._opens_block, self.opened))
        begin = 0
        for index in sorted({*heads, *self.strays}):
            if index < begin:
                continue
            end = index + 1
            if index in heads:
                while end < len(self.tokens) and self.tokens[end].text == "{":
                    end += 1
                yield self._island(Kind.HEADER, begin, end)
            else:
                is_string = self.tokens[index].kind == "open"
                yield from self._statement(begin, end if is_string else index)
                yield self._island(Kind.CLOSER, index, end)
            begin = end
        is_closer = len(self.tokens) == 1 and self.tokens[0].text in (")", "]")
        if is_closer:
            yield self._island(Kind.CLOSER, 0, 1)
        else:
            yield from self._statement(begin, len(self.tokens))

    def _statement(self, begin: int, end: int) -> Iterator[Island]:
        if begin > 0 and end == begin + 1 and self.tokens[begin].text == ",":
            return  # after a closing brace it separates statements, as a newline does
        if begin < end:
            yield self._island(Kind.STATEMENT, begin, end)

    def _island(self, kind: Kind, begin: int, end: int) -> Island:
        return Island(kind, tuple(self.tokens[begin:end]), self.indent, begin <= self.num_leading)


def _joined(every: Sequence[Line]) -> Iterator[_Statement]:
    """Lines joined to statements: what an open bracket, a dangling `=` or a leading `->` holds together."""
    at = 0
    while at < len(every):
        statement = _Statement(every[at].indent)
        statement.add(every[at].tokens)
        at += 1
        closes_at = -1
        while at < len(every):
            if statement.is_open and closes_at != 0 and closes_at <= at:
                closes_at = _closes_at(every, at, len(statement.opened))
            if not _goes_on(statement, every[at], is_within=at < closes_at):
                break
            is_stray = every[at].tokens[0].text == "}" and every[at].indent > statement.indent
            if not is_stray:
                statement.add(every[at].tokens)
            at += 1
        yield statement


def _closes_at(every: Sequence[Line], at: int, num_open: int) -> int:
    """The line after the one that closes `num_open` brackets; 0 where what no value has comes first."""
    for index, line in enumerate(every[at : at + _MAX_LOOK_AHEAD], at):
        for token in line.tokens:
            if token.text in ("{", "}", "->", "=>"):
                return 0
            num_open += (token.text in ("(", "[")) - (token.text in (")", "]"))
            if num_open <= 0:
                return index + 1
    return 0


def _goes_on(statement: _Statement, line: Line, *, is_within: bool) -> bool:
    """Whether a line belongs to the statement before it; `is_within` where its brackets close later."""
    last, first = statement.tokens[-1], line.tokens[0]
    if statement.strays:
        return False
    if first.text == "}":
        return statement.is_open and line.indent >= statement.indent and len(line.tokens) == 1
    if statement.is_open:
        if line.tokens[-1].text == "{" and _is_head(line.tokens[:-1]):
            return False
        if first.text in (")", "]") or line.indent > statement.indent or not _starts_statement(line.tokens):
            return True
        return is_within and last.text in ("(", "[", ",")
    if statement.opened or last.text in ("{", "}"):
        return False
    if first.text in _CONTINUES:
        return len(line.tokens) > 1 or first.text not in (")", "]")
    is_code = first.kind != "foreign" and not _starts_statement(line.tokens)
    return last.text in ("=", "->", "=>") and is_code


def _is_head(tokens: Sequence[Token]) -> bool:
    """Whether these may stand before the brace of a block: words, a label, commas after `on`."""
    if not tokens or tokens[0].kind != "word" or tokens[0].text in ("override", "param"):
        return False
    return all(token.kind in ("word", "string") or token.text == "," for token in tokens)


def _starts_statement(tokens: Sequence[Token]) -> bool:
    """Whether a line looks like the start of a statement, and not like an item of a list."""
    first, *rest = tokens
    if tokens[-1].text == "{":
        return True
    if first.text == "[":
        return any(token.text in ("->", "=>") or token.kind == "open" for token in rest)
    while len(rest) > 1 and rest[0].text == "." and rest[1].kind == "word":
        del rest[:2]
    if first.kind == "word":
        return not rest or rest[0].text in _BINDS or rest[0].kind in ("word", "string", "number", "open")
    return first.kind == "string" and bool(rest) and (rest[0].text in _BINDS or rest[0].kind == "word")
