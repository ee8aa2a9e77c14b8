"""Upper bounds of the text length of each filter and method of a chat template, before they run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from typing import Any

from planc.runtime.data.chat_steps import Budget, BudgetError

_WIDE = re.compile(r"\*|[0-9]{5}|\{[^{}]*\{")
"""In a format: a long width, or a computed one."""


def require_narrow(text: str) -> None:
    if _WIDE.search(text):
        raise BudgetError("it uses a format width above 9_999, or a computed one")


def _width(budget: Budget, text: Any, width: Any = 80, *_: Any, **__: Any) -> int:
    return max(_length(budget, text), width if isinstance(width, int) else 0)


def _replaced(budget: Budget, text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> int:
    text = str(text) if isinstance(text, int | float) else text
    if not (isinstance(text, str) and isinstance(old, str) and isinstance(new, str)):
        return _length(budget, text)
    budget.step()
    return len(text) + text.count(old) * max(0, len(new) - len(old))


def _joined(budget: Budget, values: Any, between: Any = "", *_: Any, **__: Any) -> int:
    count = len(values) if isinstance(values, Sized) else 0
    return budget.weigh(values) + count * (len(between) if isinstance(between, str) else 0)


def _join_method(budget: Budget, between: str, values: Any = (), *_: Any) -> int:
    return _joined(budget, values, between)


def _formatted(budget: Budget, text: Any, *arguments: Any, **named: Any) -> int:
    text = str(text)
    require_narrow(text)
    fields = 1 + text.count("{") + text.count("%")
    length: int = len(text) + fields * budget.weigh((*arguments, named))
    return length


def _expanded(budget: Budget, text: str, size: Any = 8, *_: Any, **named: Any) -> int:
    size = named.get("tabsize", size)
    return len(text) + text.count("\t") * (size if isinstance(size, int) and size > 0 else 0)


def _indented(budget: Budget, text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    lines = str(text).count("\n") + 2
    return _length(budget, text) + lines * (width if isinstance(width, int) else _length(budget, width))


def _wrapped(budget: Budget, text: Any, width: Any = 79, *more: Any, **named: Any) -> int:
    between = named.get("wrapstring", more[1] if len(more) > 1 else "\n")
    return _length(budget, text) * (1 + _length(budget, between or "\n"))


def _batched(budget: Budget, values: Any, count: Any = 1, *_: Any, **__: Any) -> int:
    return budget.weigh(values) + (abs(count) if isinstance(count, int) else 0)


def _escaped(budget: Budget, text: Any, *_: Any, **__: Any) -> int:
    return 9 * _length(budget, text)


def _json_text(budget: Budget, value: Any, *more: Any, **named: Any) -> int:
    indent = named.get("indent", more[1] if len(more) > 1 else None)
    length = budget.weigh(value)
    room = _length(budget, indent) if isinstance(indent, str) else (indent or 0)
    separators = sum(_length(budget, one) for one in named.get("separators") or ())
    return 6 * length + (min(length, budget.max_text) + 1) * (int(room) + separators)


def _length(budget: Budget, value: Any) -> int:
    return len(value) if isinstance(value, str) else budget.weigh(value)


Size = Callable[..., int]
GROWING: Mapping[str, Size] = {
    "center": _width,
    "replace": _replaced,
    "join": _joined,
    "format": _formatted,
    "indent": _indented,
    "wordwrap": _wrapped,
    "batch": _batched,
    "slice": _batched,
    "escape": _escaped,
    "e": _escaped,
    "forceescape": _escaped,
    "urlencode": _escaped,
    "string": _length,
    "tojson": _json_text,
}
"""Filters, by the maximum length of the text that they make."""
STRING_METHODS: Mapping[str, Size] = {
    "center": _width,
    "ljust": _width,
    "rjust": _width,
    "zfill": _width,
    "replace": _replaced,
    "join": _join_method,
    "format": _formatted,
    "format_map": _formatted,
    "expandtabs": _expanded,
}
