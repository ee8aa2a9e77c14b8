"""Expectations that a launch waives by name: `--set expect.world_size=waived`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planc.plan import codes, spec
from planc.plan.overrides import Override
from planc.plan.scalars import listed
from planc.plan.scope import Scope
from planc.syntax import ast

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
