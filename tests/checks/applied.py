"""What a reader does with a help line: writes its rules, sets its options, leaves out what it says."""

from __future__ import annotations

import re
from collections.abc import Callable

from planc.api import Checked
from planc.diagnostics import Diagnostic

Check = Callable[[str], Checked]

_RULE = re.compile(r'`(?:override )?"([^"]+)" -> ([^`]+)`')
_OPTION = re.compile(r"`(input|output|desired|warmup) = ([^`]+)`")
_ALSO = re.compile(r"`, and write `(input) = ([^`]+)` for `([^`]+)`")
_USE = re.compile(r"use `(\w+)` for `([^`]+)`")
_ACTION = re.compile(r"use `([^`]+)`$")
_OF = re.compile(r"(?:let|for|rule of) `([^`]+)`")
_BLOCK = "tensor_parallel on tp {\n"


def applied(text: str, diagnostic: Diagnostic, check: Check) -> str:
    """The plan with the help of one of its findings taken literally, up to its first alternative."""
    help = diagnostic.help or ""
    if "without `sequence_parallel`" in help:
        return _whole_sequences(text)
    if rules := _RULE.findall(help.partition(", or ")[0]):
        for pattern, action in rules:
            text = _with_rule(text, pattern, action, check)
        for option, value, pattern in _ALSO.findall(help):
            (line,) = (one for one in text.split("\n") if f'"{pattern}" -> ' in one)
            text = text.replace(line, _with_option(line, option, value))
        return text
    if use := _USE.search(help):
        return _with_rule(text, use[2], use[1], check)
    if action := _ACTION.match(help):
        span, lines = diagnostic.primary.span, text.split("\n")
        before, after = lines[span.line - 1][: span.column - 1], lines[span.line - 1][span.end_column - 1 :]
        lines[span.line - 1] = f"{before}{action[1]}{after}"
        return "\n".join(lines)
    line, named = diagnostic.primary.span.line - 1, _OF.search(help)
    lines = text.split("\n")
    if named is not None:
        line = next((number for number, one in enumerate(lines) if f'"{named[1]}"' in one), line)
    if "leave this rule out" in help or "leave out" in help:
        return "\n".join(lines[:line] + lines[line + 1 :])
    option = _OPTION.search(help)
    assert option is not None, f"nothing to apply in: {help}"
    lines[line] = _with_option(lines[line], option[1], option[2])
    return "\n".join(lines)


def _with_rule(text: str, pattern: str, action: str, check: Check) -> str:
    """The plan with a rule in the place of the one with its pattern, or added; as an override if it must."""
    written = re.compile(rf'^  (?:override )?"{re.escape(pattern)}" -> .*$', re.MULTILINE)
    if written.search(text):
        return written.sub(f'  "{pattern}" -> {action}', text)
    added = text.replace(_BLOCK, f'{_BLOCK}  "{pattern}" -> {action}\n')
    if all(one.code.code != "P221" for one in check(added).diagnostics):
        return added
    return text.replace(_BLOCK, f'{_BLOCK}  override "{pattern}" -> {action}\n')


def _with_option(line: str, name: str, value: str) -> str:
    if re.search(rf"\b{name} = ", line):
        return re.sub(rf"\b{name} = (?:\w+\([^)]*\)|[^,)]+)", f"{name} = {value}", line)
    if line.endswith(")"):
        return f"{line[:-1]}, {name} = {value})"
    return f"{line}({name} = {value})"


def _whole_sequences(text: str) -> str:
    lines = [
        line for line in text.split("\n") if "-> sequence_parallel" not in line and "-> prepare" not in line
    ]
    return "\n".join(re.sub(r"\((?:input|output) = Shard\(1\)(?:, )?", "(", line) for line in lines).replace(
        "()", ""
    )
