"""The `expect` blocks of a plan, and those that a launch waives: `--set expect.world_size=waived`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from planc.diagnostics import Label
from planc.plan import codes, spec
from planc.plan.facts import COUNTS, FLAGS, SIZES
from planc.plan.overrides import Override
from planc.plan.quantities import ALL_UNITS, BYTES, TOKENS
from planc.plan.scalars import MAX_INTEGER, Bool, Float, listed, wrong_type
from planc.plan.scope import Scope
from planc.plan.spellings import is_number
from planc.syntax import ast

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


_TOKEN_COUNTS = ("tokens_per_step", "total_tokens")


def holds(expectation: spec.Expectation, value: float) -> bool:
    """Whether a fact's value is as expected."""
    return _OPERATORS[expectation.operator](value, expectation.value)


def resolve_expectations(file: ast.PlanFile, scope: Scope) -> tuple[spec.Expectation, ...]:
    """Resolve the assertions of the `expect` blocks; each block adds to the others."""
    expectations = []
    blocks = (
        block for block in file.statements if isinstance(block, ast.Block) and block.kind.text == "expect"
    )
    for statement in (statement for block in blocks for statement in block.body):
        if not isinstance(statement, ast.Comparison):
            help = "write a comparison such as `world_size == 8`"
            scope.report(codes.MISPLACED, statement.span, "not inside `expect`", help=help)
            continue
        value, labels = scope.lookup(statement.value)
        subject = statement.subject
        is_flag = subject.text in FLAGS
        if not isinstance(value, ast.Bool if is_flag else ast.Number):
            wanted = _number_in_quotes(value) or "8" if not is_flag else "true"
            help = f"write `{subject.text} {statement.operator} {wanted}`"
            wrong_type(Bool() if is_flag else Float(), value, scope, labels, help=help)
            continue
        number = value.value if isinstance(value, ast.Bool) else _in_base_unit(value, subject, scope, labels)
        if number is not None:
            expectations.append(
                spec.Expectation(subject.text, statement.operator, number, subject.span, statement.span)
            )
    return tuple(expectations)


def _number_in_quotes(value: ast.Value) -> str | None:
    """The number that a string holds."""
    return value.value if isinstance(value, ast.Text) and is_number(value.value) else None


def _in_base_unit(
    number: ast.Number, subject: ast.Name, scope: Scope, labels: tuple[Label, ...]
) -> int | float | None:
    """Steps, seconds or bytes, whichever the unit belongs to."""
    if not abs(number.value) <= MAX_INTEGER:
        text, help = "the number is too large to store", f"write a number up to {MAX_INTEGER:_}"
        scope.report(codes.OUT_OF_RANGE, number.span, text, secondary=labels, help=help)
        return None
    if number.unit is None and subject.text in SIZES:
        help = f"write `{number.text} GiB`"
        scope.report(codes.WRONG_UNIT, number.span, "the unit is missing", secondary=labels, help=help)
        return None
    if number.unit is None:
        return number.value
    if subject.text in _TOKEN_COUNTS and number.unit.text in TOKENS:
        return number.value * TOKENS[number.unit.text]
    if subject.text in COUNTS:
        text, help = f"`{subject.text}` is a plain number", f"write `{number.text}`"
        scope.report(codes.WRONG_UNIT, number.unit.span, text, secondary=labels, help=help)
        return None
    units = BYTES if subject.text in SIZES else ALL_UNITS
    if number.unit.text not in units and number.unit.text in ALL_UNITS:
        text, help = f"`{subject.text}` is a number of bytes", f"write one of the units {', '.join(units)}"
        scope.report(codes.WRONG_UNIT, number.unit.span, text, secondary=labels, help=help)
        return None
    if number.unit.text not in units:
        scope.unknown(codes.WRONG_UNIT, number.unit, tuple(units), text="not a unit")
        return None
    return number.value * units[number.unit.text]


_BLOCK = "expect."
_WAIVED = "waived"


def is_waiver(override: Override) -> bool:
    return override.assignment.target.text.startswith(_BLOCK)


def waive(
    overrides: Iterable[Override], expectations: Sequence[spec.Expectation], scope: Scope
) -> tuple[tuple[spec.Expectation, ...], tuple[spec.Waiver, ...]]:
    """The expectations that remain, and those that overrides waive.

    What else an override asks of `expect` is reported.
    """
    subjects = tuple(dict.fromkeys(expectation.subject for expectation in expectations))
    waived: dict[str, spec.Waiver] = {}
    for override in filter(is_waiver, overrides):
        assignment = override.assignment
        subject = assignment.target.text.removeprefix(_BLOCK)
        if subject not in subjects:
            help = "leave it out: the plan expects nothing"
            if subjects:
                help = f"name what the plan expects: {listed(f'`{_BLOCK}{name}`' for name in subjects)}"
            text = f"no expectation of `{subject}`"
            scope.report(codes.UNKNOWN_TARGET, assignment.target.span, text, help=help)
        elif not (isinstance(assignment.value, ast.Ref) and assignment.value.name.text == _WAIVED):
            help = f"write `{_BLOCK}{subject}={_WAIVED}`, or change the `expect` block of the plan"
            text = "an expectation can't be set, only waived"
            scope.report(codes.UNKNOWN_TARGET, assignment.target.span, text, help=help)
        else:
            own = tuple(expectation for expectation in expectations if expectation.subject == subject)
            waived[subject] = spec.Waiver(own, assignment.span)
    kept = tuple(expectation for expectation in expectations if expectation.subject not in waived)
    return kept, tuple(waived.values())
