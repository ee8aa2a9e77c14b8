"""Help for syntax of other languages."""

from __future__ import annotations

import re

from planc.diagnostics.suggest import closest

_KEYWORDS = ("param", "override", "extends", "import", "use")
_BLOCK = "write the block as `{name} {{ ... }}`"
_LIST = "write a list as `[a, b]`"
_COMMENT = "start a comment with `#`"
_ARITHMETIC = "write the result: a plan has no arithmetic"
_EXPECTATION = "remove `override`: the expectations of all files must hold"

# Matched with the statement's line, in which NUL marks where it went wrong. The first that matches helps.
_HABITS: tuple[tuple[str, str], ...] = (
    # A path without quotes: `text(data/*.txt)` or `hf = ./model`, but neither `a / b`, `a/2` nor a comment.
    (
        r"[=(,]\s*(?P<start>[A-Za-z_][\w.-]*\0(-[\w.-]+)?/(?![/\d]|\*\s|\*$)|\0\.{0,2}/(?![/*\s]))"
        r"(?P<rest>[^\s,)\"#]*)",
        'write the path in quotes: `"{start}{rest}"`',
    ),
    (r"\0(//|/\*|\*/|--)", _COMMENT),
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
    (r"=\s*\0[({]", _LIST),
    (r"^\s*\0-\s", _LIST),
    (r"=\s*\0\.\d", "start a number with a digit, as in `0.5`"),
    (r"=\s*\0\+", "remove the `+`"),
    (r"[=<>]\s*([\d_.]+\s*\0[*/+-]|\w+\s+\0[*/+-]\s+[\w.]+\s*(#.*)?$)", _ARITHMETIC),
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
    return 'add the missing `"` on this line' if '"' in code else None
