"""Parts of a plan as text, for all that writes plans; `planc.fmt` lays a whole one out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal


def number(value: float) -> str:
    """A float in the shortest form that reads as the same float: `3e-4`, not `0.0003`."""
    if not value or 1e-3 <= abs(value) < 1e4:
        return repr(float(value))
    sign, digits, _ = (found := Decimal(repr(float(value))).normalize()).as_tuple()
    first, rest = digits[0], "".join(map(str, digits[1:]))
    return f"{'-' * sign}{first}{'.' * bool(rest)}{rest}e{found.adjusted()}"


def quoted(text: str) -> str:
    """A text as a plan has it, which knows no escapes: its readers refuse quotes."""
    return f'"{text}"'


def call(name: str, arguments: Sequence[str]) -> str:
    """`cosine(warmup = 10 steps)`; the name alone without arguments."""
    return f"{name}({', '.join(arguments)})" if arguments else name


def rule(patterns: Sequence[str], action: str) -> str:
    """`"model.layers.*" -> unit`, with several patterns in brackets."""
    texts = ", ".join(map(quoted, patterns))
    return f"{texts if len(patterns) == 1 else f'[{texts}]'} -> {action}"


def block(header: str, lines: Iterable[str]) -> str:
    """A block with its statements and comments, one a line."""
    body = "".join(f"  {line}\n" for line in lines)
    return f"{header} {{\n{body}}}\n"
