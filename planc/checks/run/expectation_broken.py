"""What the plan asserts about itself."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping

from planc.checks.data.batch_indivisible import CODE as BATCH_INDIVISIBLE
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Applicability, Code, Diagnostic, Fix
from planc.diagnostics.suggest import closest, is_slip
from planc.plan.facts import COUNTS, DERIVED, ESTIMATED, FLAGS
from planc.plan.spec import Expectation
from planc.tables import format_bytes, format_number

CODE = Code("P702", "expectation-broken", "an expectation does not hold")
UNKNOWN = Code("P703", "unknown-fact", "nothing of this name follows from a plan")

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_FORMULAS: Mapping[str, str] = {
    **DERIVED,
    **ESTIMATED,
}
"""Where each fact comes from."""


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each line of `expect` that is false, or that names no fact."""
    known, own_file = subject.facts, subject.plan.span("").file
    for expectation in subject.plan.expectations:
        if expectation.subject not in known:
            near = None if expectation.subject in FLAGS else closest(expectation.subject, known)
            yield UNKNOWN.at(
                expectation.subject_span,
                f"no fact `{expectation.subject}`",
                notes=(f"facts: {', '.join(known)}",),
                help=f"did you mean `{near}`?" if near else _unknown_help(expectation.subject),
                fix=_fix(expectation, near) if near else None,
            )
        elif not _OPERATORS[expectation.operator](known[expectation.subject], expectation.value):
            yield CODE.at(
                expectation.span,
                f"{expectation.subject} is {_written(expectation.subject, known[expectation.subject])}",
                notes=(f"{expectation.subject} = {_FORMULAS[expectation.subject]}",),
                help=_broken_help(is_own=expectation.span.file == own_file),
            )


def _fix(expectation: Expectation, near: str) -> Fix:
    # `tp_size` and `dp_size` are as near as a slip.
    applicability = Applicability.of(is_safe=is_slip(expectation.subject, near))
    return Fix(expectation.subject_span, near, applicability)


def _broken_help(*, is_own: bool) -> str:
    if is_own:
        return "correct the expectation, or the setting that changed"
    return "correct the setting that changed, or leave in the base what holds for every plan over it"


def _unknown_help(name: str) -> str:
    if name in FLAGS:
        return f"`{name}` follows from a `hardware` block, or from --gpu"
    return "`planc explain expect` says what each is"


def _written(name: str, value: int) -> str:
    """A count, a flag as a plan writes it, a size as every view has it and to the byte."""
    if name in FLAGS:
        return str(bool(value)).lower()
    return format_number(value) if name in COUNTS else f"{format_bytes(value)} ({format_number(value)} B)"


RULE = Rule((CODE, UNKNOWN), check, block="train", unless=(BATCH_INDIVISIBLE,))
