"""How other languages write what a plan writes otherwise: help for those who come from them."""

from __future__ import annotations

import re

from planc.diagnostics.suggest import closest

_KEYWORDS = ("param", "override", "extends", "import", "use")
_BLOCK = "a block is written `{name} {{ ... }}`"
_LIST = "a list is written `[a, b]`"
_COMMENT = "a comment starts with `#`"
_ARITHMETIC = "a plan has no arithmetic: write what this comes to"
_EXPECTATION = "expectations add up and have no override: a base keeps those that hold for every plan over it"

# Matched with the statement's line, in which NUL marks where it went wrong. The first that matches helps.
_HABITS: tuple[tuple[str, str], ...] = (
    (r"\0(//|/\*|\*/|--)", _COMMENT),
    (r"^\s*\0(<|==|>)(<<|==|>>)", "a merge has left its marks here: keep one side and remove them"),
    (r"\0\$", "a plan reads no environment: declare a `param` and give its value with --set"),
    (r"^\s*(?P<name>\w+)\s*\0:\s*(#.*)?\{?$", _BLOCK),
    (r"\btorch\0\.(?P<name>\w+)", "write `{name}` without `torch.`"),
    (r"^\s*\"(?P<name>\w+)\"\s*\0:\s*\{", _BLOCK),
    (r"^\s*(?P<name>\w+)\s*\0:", "a setting is written `{name} = ...`"),
    (r"^\s*\"(?P<name>\w+)\"\s*\0:", "a setting is written `{name} = ...`, the name without quotes"),
    (r"^\s*\"(?P<name>\w+)\"\s*\0=(?!>)", 'a rule is written `"{name}" -> action`, a setting `{name} = ...`'),
    (r"^\s*(?P<name>\w+)\s*=\s*\0\{\s*(#.*)?$", f"{_BLOCK}, without `=`"),
    (r"^\s*(override\s+)?(\"[^\"]*\"|\[.*\])\s*\0(=|:|-)", 'a rule is written `"pattern" -> action`'),
    (r"^\s*(override\s+)?(\"[^\"]*\"|\[.*\])\s*\0\w", 'a rule is written `"pattern" -> action`'),
    (r"^\s*\[\0(?P<name>\w+)\]", _BLOCK),
    (r"^\s*(?P<name>\w+)[^={}]*\0[(\[]\s*$", _BLOCK),
    (r"^\s*\0\{", "`{{` stands on the line of the block's name"),
    (r"(=|->)\s*(?P<name>\w+)\s*\0[\[{<]", "a call is written `{name}(...)`"),
    (r"=\s*\0[({]", _LIST),
    (r"^\s*\0-\s", _LIST),
    (r"=\s*\0\.\d", "a number starts with a digit, as in 0.5"),
    (r"=\s*\0\+", "a number has no `+`"),
    (r"[=<>]\s*([\d_.]+\s*\0[*/+-]|\w+\s+\0[*/+-]\s+[\w.]+\s*(#.*)?$)", _ARITHMETIC),
    (r"^\s*override\s+[\w.]+\s*(=\0=|\0[!<>])", _EXPECTATION),
    (r"[(,]\s*\w+\s*=\s*[\w.+-]+\s+\w+\s*\0=", "arguments are separated by commas"),
    (r"^\s*(?P<name>\w+)\s*\0=(?!>)", "a value or a comma is missing before `{name}`"),
    (r"=\s*\S.*\s\w+\s*\0=", "each setting stands on its own line, or after a comma"),
    (r"\bon\b.*\0(and|&)", "mesh dims are separated by commas"),
    (r"^\s*(for|while|if|else|elif|def|function)\b", "a plan has no loops, conditions or functions"),
    (r"^\s*(let|var|const|variable|local|val)\b", "a parameter is written `param name: int = 1`"),
)
_COMPILED = tuple((re.compile(pattern), help) for pattern, help in _HABITS)


def habit(line: str, *, column: int) -> str | None:
    """Help for a line that went wrong at `column`, counted from 1; None where no habit is known."""
    marked = f"{line[: column - 1]}\0{line[column - 1 :]}"
    for pattern, help in _COMPILED:
        if match := pattern.search(marked):
            return help.format(**match.groupdict())
    return _keyword(marked) or _quote(line)


def _keyword(marked: str) -> str | None:
    """A slip in a word of the language, of which the next word is the first that does not fit."""
    if (match := re.match(r"\s*(\w+)\s+\0[\w\"]", marked)) and match[1] not in _KEYWORDS:
        near = closest(match[1], _KEYWORDS)
        if near:
            return f"did you mean `{near}`?"
    if match := re.match(r"\s*\w+\s+\0(o\w{1,2}|\wn)\s+\w", marked):
        return "did you mean `on`?"
    return None


def _quote(line: str) -> str | None:
    """Quotes come in pairs on every line."""
    code = re.sub(r'"[^"]*"|#.*', "", line)
    return 'a `"` is missing on this line' if '"' in code else None
