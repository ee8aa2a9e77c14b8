"""Limits that a text must meet before it is parsed: size, depth, length of numbers, plain characters."""

from __future__ import annotations

import re

from planc.diagnostics import Diagnostic
from planc.source import SourceFile, Span
from planc.syntax import codes

MAX_CHARACTERS = 250_000
MAX_TOKENS = 40_000
"""Eight on each of 5,000 lines."""
MAX_DEPTH = 64
MAX_DIGITS = 32
LARGE_HELP = "check that this is the right file"

_TOKENS = re.compile(r'"[^"\n]*"|(#[^\n]*)|[A-Za-z0-9_]+|[^\s]')
_BRACKETS = re.compile(r'"[^"\n]*"|#[^\n]*|[{}()\[\]]|\n')
_DIGITS = re.compile(rf'"[^"\n]*"|#[^\n]*|(?<![0-9])[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9_]{{{MAX_DIGITS},}}')
# What makes text read as something else than it is: control characters (a lone carriage return among them),
# line separators, bidi marks, zero-width and tag characters, the byte-order mark, halves of surrogate pairs.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]|\r(?!\n)"
)


def over_budget(source: SourceFile) -> tuple[Diagnostic, ...]:
    """The errors that prevent parsing; empty for a text that can be parsed."""
    if len(source.text) > MAX_CHARACTERS:
        text = f"{len(source.text)} characters; a plan has at most {MAX_CHARACTERS}"
        return (codes.TOO_LARGE.at(source.start(), text, help=LARGE_HELP),)
    if match := _FORBIDDEN.search(source.text):
        return (_forbidden(source, match.start(), match.group()),)
    for match in _DIGITS.finditer(source.text):
        if match.group()[0].isdigit():
            text = f"more than {MAX_DIGITS} digits"
            help = "an integer can be up to 9_223_372_036_854_775_807; write other numbers as in `1e12`"
            span = span_at(source, match.start(), MAX_DIGITS)
            return (codes.NUMBER_TOO_LONG.at(span, text, help=help),)
    depth = 0
    for match in _BRACKETS.finditer(source.text):
        depth += (match.group() in "{([") - (match.group() in "})]")
        if depth > MAX_DEPTH:
            text, help = f"more than {MAX_DEPTH} open brackets", "remove levels of nesting"
            return (codes.TOO_DEEP.at(span_at(source, match.start(), 1), text, help=help),)
    crowded = _crowded(source) if len(source.text) > MAX_TOKENS else None
    return (crowded,) if crowded else ()


def _crowded(source: SourceFile) -> Diagnostic | None:
    num_tokens = 0
    for match in _TOKENS.finditer(source.text):
        num_tokens += match.lastindex is None  # a comment is none
        if num_tokens > MAX_TOKENS:
            text = f"more than {MAX_TOKENS} tokens up to here"
            help = "match many modules with one pattern"
            return codes.TOO_MANY_TOKENS.at(span_at(source, match.start(), 1), text, help=help)
    return None


def _forbidden(source: SourceFile, offset: int, character: str) -> Diagnostic:
    text = f"U+{ord(character):04X} is not allowed, not even in a comment or a string"
    help = "remove the character"
    if character == "\ufeff" and offset == 0:
        help = "save the file as UTF-8 without a byte-order mark"
    if character == "\r":
        help = "save the file with Unix or Windows line endings"
    return codes.NOT_TEXT.at(span_at(source, offset, 1), text, help=help)


def span_at(source: SourceFile, offset: int, length: int) -> Span:
    """The span of `length` characters of one line, from an offset into the text."""
    line = source.text.count("\n", 0, offset) + 1
    column = offset - (source.text.rfind("\n", 0, offset) + 1) + 1
    return Span(source.name, line, column, line, column + length)
