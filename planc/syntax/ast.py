"""The syntax tree of a plan. Every node keeps its span; nothing here has a meaning yet."""

from __future__ import annotations

from planc.record import record
from planc.source import Span


@record
class Name:
    text: str
    span: Span


@record
class Number:
    """`3e-4`, `500 steps`. `text` is as written, without the unit."""

    value: int | float
    unit: Name | None
    text: str
    span: Span


@record
class Text:
    """A string; `span` includes the quotes."""

    value: str
    span: Span

    def part(self, start: int, end: int) -> Span:
        """The span of characters [start, end) of the value."""
        line, column = self.span.line, self.span.column + 1
        return Span(self.span.file, line, column + start, line, column + end)


@record
class Bool:
    value: bool
    span: Span


@record
class Ref:
    """A bare word: a parameter's name, or one of a closed set of choices.

    In a fragment, `alias` is the import that it came by: the word then names a parameter of that file.
    """

    name: Name
    alias: str = ""

    @property
    def param_name(self) -> str:
        """The name under which the plan knows the parameter: `llama.width` where the import is `llama`."""
        return f"{self.alias}.{self.name.text}" if self.alias else self.name.text

    @property
    def span(self) -> Span:
        return self.name.span


@record
class Argument:
    name: Name | None
    value: Value
    span: Span


@record
class Call:
    name: Name
    arguments: tuple[Argument, ...]
    span: Span


@record
class Items:
    values: tuple[Value, ...]
    span: Span


@record
class Arithmetic:
    """`batch * 512`: operands of `+` and `-`, or of `*` and `/`, computed from left to right.

    Brackets around an operand are in the tree alone, not in its span.
    """

    operands: tuple[Value, ...]
    operators: tuple[str, ...]
    span: Span

    @property
    def is_sum(self) -> bool:
        return self.operators[0] in "+-"

    @property
    def compact(self) -> str:
        """The text without spaces: a path without its quotes reads as arithmetic."""
        operands = map(_compact, self.operands)
        return "".join(part for pair in zip(("", *self.operators), operands, strict=True) for part in pair)


def _compact(value: Value) -> str:
    match value:
        case Number(text=text, unit=unit):
            return f"{text}{unit.text if unit else ''}"
        case Ref(name):
            return name.text
        case Arithmetic():
            return value.compact
        case _:
            return "..."


Value = Number | Text | Bool | Ref | Call | Items | Arithmetic


@record
class Setting:
    name: Name
    value: Value
    override: bool
    span: Span


@record
class Rule:
    patterns: tuple[Text, ...]
    action: Call | Ref
    override: bool
    span: Span


@record
class Extends:
    """`extends "base/h100.plan"`: the file that this one adds to."""

    path: Text
    span: Span


@record
class Import:
    """`import "presets/llama.plan" as llama`: a file of fragments, and the name that they are used by."""

    path: Text
    alias: Name
    span: Span


@record
class Extension:
    """`extension "losses.py"`: a Python file, what it registers is the plan's to name."""

    path: Text
    span: Span


@record
class Use:
    """`use llama.sequence_parallel`: a fragment's statements stand here. `name` has the dots."""

    name: Name
    span: Span


@record
class Directive:
    """A word as a statement: `auto`, or `auto(solve)`."""

    name: Name
    call: Call | None = None

    @property
    def span(self) -> Span:
        return self.call.span if self.call else self.name.span


@record
class Comparison:
    """`peak_memory < 60 GiB`, in an `expect` block."""

    subject: Name
    operator: str
    value: Value
    span: Span


@record
class ParamType:
    name: Name
    low: Number | None
    high: Number | None


@record
class Param:
    name: Name
    type: ParamType
    default: Value
    span: Span


@record
class Block:
    kind: Name
    label: Text | None
    on: tuple[Name, ...]
    body: tuple[Statement, ...]
    span: Span


Statement = Extends | Import | Extension | Param | Block | Setting | Rule | Use | Directive | Comparison


@record
class PlanFile:
    """A parsed file."""

    file: str
    statements: tuple[Statement, ...]
    span: Span


@record
class Assignment:
    """`mesh.tp = 4` from outside the file: the target's dotted path and the value."""

    target: Name
    value: Value
    span: Span
