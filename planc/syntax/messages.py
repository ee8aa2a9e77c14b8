"""Lark's errors as diagnostics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from planc.diagnostics import Applicability, Diagnostic, Fix
from planc.source import SourceFile, Span
from planc.syntax import codes
from planc.syntax.budget import span_at
from planc.syntax.habits import habit

_MAX_WANTED = 6
_BRACKETS = re.compile(r'"[^"\n]*"|#[^\n]*|[{}()\[\]]')
_CHARACTER_HELP = {
    "'": 'write strings in double quotes: `"..."`',
    "`": 'write strings in double quotes: `"..."`',
    ";": "remove it: a statement ends with its line, or with a comma",
    "/": 'write a path as a string: `"..."`',
    "\\": "remove it: a list or a call can span several lines",
    "*": 'write a pattern as a string: `"..."`',
}
_TOKEN_NAMES = {
    "_NEWLINE": "end of line",
    "_ON": "`on`",
    "_AS": "`as`",
    "NAME": "name",
    "STRING": "string",
    "INT": "number",
    "FLOAT": "number",
    "OPERATOR": "comparison",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "COMMA": "`,`",
    "DOT": "`.`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "__ANON_0": "`..`",
    "__ANON_1": "`->`",
    "$END": "end of file",
}


def syntax_error(error: UnexpectedInput, source: SourceFile) -> Diagnostic:
    """The finding for what stopped the parser in `source`."""
    if isinstance(error, UnexpectedCharacters):
        return _unexpected_character(source, error)
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        return _unexpected_token(source, error)
    return _unexpected_end(source)


def _unexpected_character(source: SourceFile, error: UnexpectedCharacters) -> Diagnostic:
    span = Span(source.name, error.line, error.column, error.line, error.column + 1)
    line = source.lines[error.line - 1]
    if error.char == '"':
        if re.search(r'[\w.*}"]$', line[: error.column - 1]):
            text, help = "this quote does not end a string", 'add the missing `"` before it'
        else:
            text, help = "this string does not end on this line", 'close it with `"`'
        return codes.UNEXPECTED_CHARACTER.at(span, text, help=help)
    if not error.char.isascii():
        help = "use ASCII outside strings and comments"
        return codes.UNEXPECTED_CHARACTER.at(span, f"U+{ord(error.char):04X} `{error.char}`", help=help)
    text = f"`{error.char}` is not valid here"
    help = habit(line, column=error.column) or _CHARACTER_HELP.get(error.char, "")
    return codes.UNEXPECTED_CHARACTER.at(span, text, help=help or None)


def _unexpected_token(source: SourceFile, error: UnexpectedToken) -> Diagnostic:
    token = error.token
    is_newline = token.type == "_NEWLINE"
    line, column = token.line or 1, token.column or 1
    span = Span(source.name, line, column, line, column + (1 if is_newline else len(token)))
    found = "end of line" if is_newline else f"`{token}`"
    help = habit(source.lines[line - 1], column=column) or _wanted(error.accepts or error.expected)
    fix = _without_torch(source.lines[line - 1], span)
    return codes.UNEXPECTED_TOKEN.at(span, f"found {found}", help=help, fix=fix)


def _without_torch(line: str, dot: Span) -> Fix | None:
    """The removal of `torch.` before a dtype, of which the parser stops at the dot."""
    match = re.compile(r"\btorch\.(?=\w)").match(line, max(0, dot.column - 1 - len("torch")))
    if match is None or match.end() != dot.column:
        return None
    return Fix(replace(dot, column=match.start() + 1), "", Applicability.SAFE)


def _wanted(terminals: set[str]) -> str | None:
    """What could have stood here, where that is short enough to help."""
    names = sorted({_TOKEN_NAMES.get(name, f"`{name.lower()}`") for name in terminals})
    if 0 < len(names) <= _MAX_WANTED:
        return f"expected {_or(names)}"
    return "write a setting as `key = value`" if "EQUAL" in terminals else None


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _unexpected_end(source: SourceFile) -> Diagnostic:
    opened = _last_open(source)
    if opened is None:
        whole = source.whole()
        end = Span(source.name, whole.end_line, whole.end_column, whole.end_line, whole.end_column + 1)
        return codes.UNEXPECTED_END.at(end, "the last statement is incomplete")
    span, bracket = opened
    closer = {"{": "}", "(": ")", "[": "]"}[bracket]
    return codes.UNCLOSED.at(span, f"`{bracket}` is never closed", help=f"close it with `{closer}`")


def _last_open(source: SourceFile) -> tuple[Span, str] | None:
    stack: list[tuple[int, str]] = []
    for match in _BRACKETS.finditer(source.text):
        if match.group() in "{([":
            stack.append((match.start(), match.group()))
        elif match.group() in "})]" and stack:
            stack.pop()
    return (span_at(source, stack[-1][0], 1), stack[-1][1]) if stack else None
