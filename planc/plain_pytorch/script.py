"""The parts of a script, and the error for ops without a plain PyTorch form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from planc.graph.op import Op
from planc.vocab import DType, MeshDim


class NotInScript(ValueError):
    """Each line has an op, its place in the plan, and the part without a plain PyTorch form."""


def refuse(op: Op, reason: str) -> NotInScript:
    """The error for an op without a plain PyTorch form."""
    where = f"{op.span.file}:{op.span.line}:{op.span.column}: " if op.span else ""
    return NotInScript(f"{where}{op.name}: {reason}")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def in_one_line(name: str) -> str:
    """Escape a file's name, which may have any character, for comments and docstrings."""
    return " ".join(name.splitlines()).replace('"', "'").replace("\\", "/")


def dtype(of: DType) -> str:
    return f"torch.{of.value}"


def one_dim(over: tuple[MeshDim, ...]) -> str:
    """The submesh of the one mesh dim."""
    (mesh_dim,) = over
    return f'mesh["{mesh_dim.value}"]'


def listed(names: Iterable[str]) -> Iterator[str]:
    """`names` as members of a Python list; names that differ only in a layer's number are combined."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        head, number, tail = _around_number(name)
        if number is None:
            yield quoted(name)
        else:
            numbers.setdefault((head, tail), []).append(number)
    for (head, tail), found in numbers.items():
        first, last = min(found), max(found)
        is_range = sorted(found) == list(range(first, last + 1))
        among = f"range({first}, {last + 1})" if is_range else repr(tuple(sorted(found)))
        yield f"*(f{quoted(f'{_in_braces(head)}{{n}}{_in_braces(tail)}')} for n in {among})"


def _in_braces(text: str) -> str:
    """Escape a text for an f-string."""
    return text.replace("{", "{{").replace("}", "}}")


def _around_number(name: str) -> tuple[str, int | None, str]:
    parts = name.split(".")
    at = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    if at is None:
        return name, None, ""
    return (
        "".join(f"{part}." for part in parts[:at]),
        int(parts[at]),
        "".join(f".{part}" for part in parts[at + 1 :]),
    )
