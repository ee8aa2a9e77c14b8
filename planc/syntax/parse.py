"""Source text to syntax tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from lark import Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken

from planc.diagnostics import Diagnostic
from planc.source import SourceFile, Span
from planc.syntax import ast, codes
from planc.syntax.build import Builder
from planc.syntax.grammar import parser

MAX_CHARACTERS = 250_000
MAX_DEPTH = 64
MAX_DIGITS = 32
_MAX_WANTED = 6

_BRACKETS = re.compile(r'"[^"\n]*"|#[^\n]*|[{}()\[\]]|\n')
_DIGITS = re.compile(rf'"[^"\n]*"|#[^\n]*|(?<![0-9])[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9_]{{{MAX_DIGITS},}}')
# What makes text read as something else than it is: control characters (a lone carriage return among them),
# line separators, bidi marks, zero-width and tag characters, the byte-order mark, halves of surrogate pairs.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]|\r(?!\n)"
)
_CHARACTER_HELP = {
    "'": 'strings stand in double quotes: "..."',
    ";": "a statement ends with its line, or with a comma",
    "/": 'a path is a string: "..."',
    "\\": "a list or a call may go over several lines as it is",
}
_GRAMMATICAL = (codes.UNEXPECTED_CHARACTER, codes.UNEXPECTED_TOKEN, codes.UNEXPECTED_END)
_ASSIGNMENT_HELP = 'write `name=value`, as in `mesh.tp=4` or `model.hf="models/llama"` (quotes included)'

_TOKEN_NAMES = {
    "_NEWLINE": "end of line",
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


def parse(source: SourceFile) -> tuple[ast.PlanFile | None, tuple[Diagnostic, ...]]:
    """The tree of a plan file, or what keeps it from being one."""
    tree, problems = _tree(source, "start")
    if tree is None:
        return None, problems
    statements = Builder(source.name).statements(tree.children)
    return ast.PlanFile(source.name, statements, source.whole()), problems


def parse_assignment(source: SourceFile) -> tuple[ast.Assignment | None, tuple[Diagnostic, ...]]:
    """The tree of one `path = value` from the command line."""
    tree, problems = _tree(source, "assignment")
    if tree is None:
        return None, tuple(
            replace(problem, help=_ASSIGNMENT_HELP) if problem.code in _GRAMMATICAL else problem
            for problem in problems
        )
    return Builder(source.name).assignment(tree), ()


def _tree(source: SourceFile, start: str) -> tuple[Tree[Token] | None, tuple[Diagnostic, ...]]:
    over_budget = _budget(source)
    if over_budget:
        return None, over_budget
    try:
        return parser().parse(source.text, start=start), ()
    except UnexpectedCharacters as error:
        return None, (_unexpected_character(source, error),)
    except UnexpectedToken as error:
        return None, (_unexpected_token(source, error),)
    except UnexpectedEOF:
        return None, (_unexpected_end(source),)


def _budget(source: SourceFile) -> tuple[Diagnostic, ...]:
    """What forbids parsing at all: size, depth, endless numbers, characters that mislead a reader."""
    if len(source.text) > MAX_CHARACTERS:
        text = f"{len(source.text)} characters; a plan has at most {MAX_CHARACTERS}"
        return (codes.TOO_LARGE.at(source.start(), text),)
    if match := _FORBIDDEN.search(source.text):
        text = f"U+{ord(match.group()):04X} is not allowed, not even in a comment or a string"
        return (codes.NOT_TEXT.at(_span(source, match.start(), 1), text, help="remove the character"),)
    for match in _DIGITS.finditer(source.text):
        if match.group()[0].isdigit():
            text = f"more than {MAX_DIGITS} digits"
            return (codes.NUMBER_TOO_LONG.at(_span(source, match.start(), MAX_DIGITS), text),)
    depth = 0
    for match in _BRACKETS.finditer(source.text):
        depth += (match.group() in "{([") - (match.group() in "})]")
        if depth > MAX_DEPTH:
            text = f"more than {MAX_DEPTH} open brackets"
            return (codes.TOO_DEEP.at(_span(source, match.start(), 1), text),)
    return ()


def _span(source: SourceFile, offset: int, length: int) -> Span:
    line = source.text.count("\n", 0, offset) + 1
    column = offset - (source.text.rfind("\n", 0, offset) + 1) + 1
    return Span(source.name, line, column, line, column + length)


def _unexpected_character(source: SourceFile, error: UnexpectedCharacters) -> Diagnostic:
    span = Span(source.name, error.line, error.column, error.line, error.column + 1)
    if error.char == '"':
        text = "this string does not end on its line"
        return codes.UNEXPECTED_CHARACTER.at(span, text, help='close it with `"`')
    if not error.char.isascii():
        help = "identifiers and digits are ASCII; other characters belong in strings and comments"
        return codes.UNEXPECTED_CHARACTER.at(span, f"U+{ord(error.char):04X} `{error.char}`", help=help)
    text = f"`{error.char}` has no meaning here"
    return codes.UNEXPECTED_CHARACTER.at(span, text, help=_CHARACTER_HELP.get(error.char))


def _unexpected_token(source: SourceFile, error: UnexpectedToken) -> Diagnostic:
    token = error.token
    if token.type == "$END":
        return _unexpected_end(source)
    is_newline = token.type == "_NEWLINE"
    span = Span(
        source.name, token.line, token.column, token.line, token.column + (1 if is_newline else len(token))
    )
    found = "end of line" if is_newline else f"`{token}`"
    return codes.UNEXPECTED_TOKEN.at(span, f"found {found}", help=_wanted(error.accepts or error.expected))


def _wanted(terminals: set[str]) -> str | None:
    """What could have stood here, where that is short enough to help."""
    names = sorted({_TOKEN_NAMES.get(name, f"`{name.lower()}`") for name in terminals})
    if 0 < len(names) <= _MAX_WANTED:
        return f"expected {_or(names)}"
    return "a setting is written `key = value`" if "EQUAL" in terminals else None


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _unexpected_end(source: SourceFile) -> Diagnostic:
    opened = _last_open(source)
    if opened is None:
        whole = source.whole()
        end = Span(source.name, whole.end_line, whole.end_column, whole.end_line, whole.end_column + 1)
        return codes.UNEXPECTED_END.at(end, "a statement is unfinished")
    return codes.UNEXPECTED_END.at(opened, "this is never closed", help="close it before the file ends")


def _last_open(source: SourceFile) -> Span | None:
    stack: list[int] = []
    for match in _BRACKETS.finditer(source.text):
        if match.group() in "{([":
            stack.append(match.start())
        elif match.group() in "})]" and stack:
            stack.pop()
    return _span(source, stack[-1], 1) if stack else None
