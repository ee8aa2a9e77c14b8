"""JSON as leaves. The standard parser gives no positions, so a scan of its tokens finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from planc import strict_json
from planc.import_configs.leaf import Leaf, SourceError, Value, check_leaf

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def json_leaves(text: str) -> tuple[Leaf, ...]:
    """The leaves of a JSON text that is an object. SourceError for anything else."""
    try:
        document = strict_json.loads(text)
    except ValueError as error:
        raise SourceError(f"not JSON: {str(error).partition(' (char')[0]}") from None
    if not isinstance(document, dict):
        raise SourceError("the file is not a table of keys")
    return tuple(leaves_of(document, _lines(text)))


def leaves_of(document: dict[str, Any], lines: dict[tuple[str, ...], int]) -> Iterator[Leaf]:
    """The leaves of a parsed table; a key without a line has that of the table it is in."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), document)]
    num_seen = 0
    while stack:
        path, value = stack.pop()
        num_seen += 1
        line = next(lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines)
        check_leaf(path, num_seen, line)
        if isinstance(value, dict) and value:
            stack += [((*path, name), one) for name, one in reversed(value.items())]
        elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
            stack += [((*path, str(index)), one) for index, one in reversed([*enumerate(value)])]
        else:
            yield Leaf(path, _plain(value), line)


def _plain(value: Any) -> Value:
    if isinstance(value, dict | list):
        return tuple(_plain(one) for one in value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of every key and of every list's element, in a text that is JSON."""
    lines: dict[tuple[str, ...], int] = {(): 1}
    stack: list[str | int] = []
    """Where the scan is: a list's index, or an object's last key, empty before the first."""
    line, last = 1, 0
    is_key = False
    for token in _TOKEN.finditer(text):
        line += text.count("\n", last, token.start())
        last = token.start()
        match token[0]:
            case "{" | "[" as opening:
                _place(lines, stack, line)
                stack.append("" if opening == "{" else 0)
                is_key = opening == "{"
            case "}" | "]":
                stack.pop()
                is_key = False
            case ",":
                top = stack[-1]
                is_key = isinstance(top, str)
                stack[-1] = "" if isinstance(top, str) else top + 1
            case ":":
                is_key = False
            case key if is_key:
                stack[-1] = strict_json.loads(key)
                _place(lines, stack, line)
            case _:
                _place(lines, stack, line)
    return lines


def _place(lines: dict[tuple[str, ...], int], stack: list[str | int], line: int) -> None:
    lines.setdefault(tuple(map(str, stack)), line)
