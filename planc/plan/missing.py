"""Required blocks and keys that a plan lacks, each with a template to fill in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, replace
from typing import Any

from planc.diagnostics import Applicability, Fix
from planc.plan import codes
from planc.plan.blocks import Shape
from planc.plan.keys import keys, type_of
from planc.plan.scalars import listed
from planc.plan.scope import Scope
from planc.source import Span


def required(record: type[Any]) -> tuple[Field[Any], ...]:
    """The keys of a block that have no default."""
    return tuple(key for key in keys(record) if key.metadata["default"] is MISSING)


def report_block(kind: str, shape: Shape, scope: Scope, *, file: Span) -> None:
    """Report that a whole block is missing from the file with this span."""
    end = replace(file, line=file.end_line, column=file.end_column)
    lines = (f"{kind} {{", *_template(required(shape.record)), "}")
    start = Span(file.file, 1, 1, 1, 1)
    help = f"add `{kind} {{ ... }}` with your own values; `planc explain {kind}` lists its keys"
    fix = Fix(end, "".join(f"{line}\n" for line in ("", *lines)), Applicability.DISPLAY_ONLY)
    scope.report(codes.MISSING, start, f"the plan has no `{kind}` block", help=help, fix=fix)


def report_keys(path: str, absent: Sequence[Field[Any]], scope: Scope, *, at: Span, block: Span) -> None:
    """Report the keys that a block lacks in one finding; `block` is the span of the whole block."""
    # Before the closing brace, which has a line of its own unless the block has only one.
    column = max(1, block.end_column - 1)
    brace = replace(block, line=block.end_line, column=column, end_column=column)
    lines = [f"{line}\n" for line in _template(absent)]
    if block.line == block.end_line:
        lines.insert(0, "\n")
    names = listed((f"`{one.name}`" for one in absent), last="and")
    it = "it with your own value" if len(absent) == 1 else "them with your own values"
    help = f"add {it}; `planc explain {path.partition('.')[0]}` lists all keys"
    fix = Fix(brace, "".join(lines), Applicability.DISPLAY_ONLY)
    scope.report(codes.MISSING, at, f"`{path}` needs {names}", help=help, fix=fix)


def _template(absent: Sequence[Field[Any]]) -> Iterator[str]:
    """`  steps = <an integer from 1 up>  # optimizer steps, such as 1000`, a line for each key."""
    for spec_field in absent:
        doc, example = spec_field.metadata["doc"], spec_field.metadata["example"]
        wanted = type_of(spec_field).describe()
        yield f"  {spec_field.name} = <{wanted}>  # {doc}, such as {example}"
