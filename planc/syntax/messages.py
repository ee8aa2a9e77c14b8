"""Lark's errors as diagnostics, with help for syntax of other languages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from planc.diagnostics import Applicability, Diagnostic, Fix
from planc.diagnostics.suggest import closest
from planc.source import SourceFile, Span
from planc.syntax import codes
from planc.syntax.budget import span_at
from planc.syntax.slips import KEYWORDS

_BLOCK = "write the block as `{name} {{ ... }}`"
_LIST = "write a list as `[a, b]`"
_COMMENT = "start a comment with `#`"
_POWER = "write a power as a product: a plan computes with `+`, `-`, `*` and `/`"
_EXPECTATION = "remove `override`: the expectations of all files must hold"

# Matched with the statement's line, in which NUL marks where it went wrong. The first that matches helps.
_HABITS: tuple[tuple[str, str], ...] = (
    # A path without quotes: `text(data/*.txt)`, `text(a/b.txt)` or `hf = ./model`, but no comment.
    (
        r"[=(,]\s*(?P<start>[A-Za-z_][\w.-]*/[\w./-]*\0[.*?](?!\s)|\0\.{0,2}/(?![/*\s]))"
        r"(?P<rest>[^\s,)\"#]*)",
        'write the path in quotes: `"{start}{rest}"`',
    ),
    (r"\0(//|/\*|\*/|--)|/\0[/*]|-\0-", _COMMENT),
    (r"\*\0\*", _POWER),
    (r"^\s*\0(<|==|>)(<<|==|>>)", "resolve the merge conflict and remove its markers"),
    (r"\0\$", "declare a `param` and set it with `--set`: a plan can't read the environment"),
    (r"^\s*(?P<name>\w+)\s*\0:\s*(#.*)?\{?$", _BLOCK),
    (r"\btorch\0\.(?P<name>\w+)", "write `{name}` without `torch.`"),
    (r"^\s*\"(?P<name>\w+)\"\s*\0:\s*\{", _BLOCK),
    (r"^\s*(?P<name>\w+)\s*\0:", "write a setting as `{name} = ...`"),
    (r"^\s*\"(?P<name>\w+)\"\s*\0:", "write a setting as `{name} = ...`, without quotes around the name"),
    (
        r"^\s*\"(?P<name>\w+)\"\s*\0=(?!>)",
        'write a rule as `"{name}" -> action`, or a setting as `{name} = ...`',
    ),
    (r"^\s*(?P<name>\w+)\s*=\s*\0\{\s*(#.*)?$", f"{_BLOCK}, without `=`"),
    (r"^\s*(override\s+)?(\"[^\"]*\"|\[.*\])\s*\0(=|:|-)", 'write a rule as `"pattern" -> action`'),
    (r"^\s*(override\s+)?(\"[^\"]*\"|\[.*\])\s*\0\w", 'write a rule as `"pattern" -> action`'),
    (r"^\s*\[\0(?P<name>\w+)\]", _BLOCK),
    (r"^\s*(?P<name>\w+)[^={}]*\0[(\[]\s*$", _BLOCK),
    (r"^\s*\0\{", "move `{{` to the line of the block's name"),
    (r"(=|->)\s*(?P<name>\w+)\s*\0[\[{<]", "write a call as `{name}(...)`"),
    (r"=\s*(\0[({]|\([^()]*\0,)", _LIST),
    (r"^\s*\0-\s", _LIST),
    (r"=\s*\0\.\d", "start a number with a digit, as in `0.5`"),
    (r"=\s*\0\+", "remove the `+`"),
    (r"^\s*override\s+[\w.]+\s*(=\0=|\0[!<>])", _EXPECTATION),
    (r"[(,]\s*\w+\s*=\s*[\w.+-]+\s+\w+\s*\0=", "separate arguments with commas"),
    (r"^\s*(?P<name>\w+)\s*\0=(?!>)", "add the missing value or comma before `{name}`"),
    (r"=\s*\S.*\s\w+\s*\0=", "write each setting on its own line, or after a comma"),
    (r"\bon\b.*\0(and|&)", "separate mesh dims with commas"),
    (
        r"^\s*(for|while|if|else|elif|def|function)\b",
        "remove it: a plan has no loops, conditions or functions",
    ),
    (r"^\s*(let|var|const|variable|local|val)\b", "write a parameter as `param name: int = 1`"),
)
_COMPILED = tuple((re.compile(pattern), help) for pattern, help in _HABITS)


def habit(line: str, *, column: int) -> str | None:
    """Help for a line that went wrong at `column`, counted from 1; None where no habit is known."""
    marked = f"{line[: column - 1]}\0{line[column - 1 :]}"
    for pattern, help in _COMPILED:
        if match := pattern.search(marked):
            return help.format(**match.groupdict()).replace("\0", "")
    return _keyword(marked) or _quote(line)


def _keyword(marked: str) -> str | None:
    """A slip in a word of the language, of which the next word is the first that does not fit."""
    if (match := re.match(r"\s*(\w+)\s+\0[\w\"]", marked)) and match[1] not in KEYWORDS:
        near = closest(match[1], KEYWORDS)
        if near:
            return f"did you mean `{near}`?"
    if match := re.match(r"\s*\w+\s+\0(o\w{1,2}|\wn)\s+\w", marked):
        return "did you mean `on`?"
    return None


def _quote(line: str) -> str | None:
    """Quotes come in pairs on every line."""
    code = re.sub(r'"[^"]*"|#.*', "", line)
    return 'add the missing `"` on this line' if '"' in code else None


_MAX_WANTED = 7
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
    """Describe what could have stood here, if that is short enough to help."""
    # Operators would not help where something else is wrong.
    named = terminals - {"PLUS", "MINUS", "STAR", "SLASH"}
    names = sorted({_TOKEN_NAMES.get(name, f"`{name.lower()}`") for name in named})
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
