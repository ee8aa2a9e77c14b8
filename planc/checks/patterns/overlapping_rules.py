"""Two rules that assign different things to one name."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import exact_families, quoted
from planc.source import Span

CODE = Code("P221", "overlapping-rules", "two rules conflict on the same name")

_MAX_NAMES = 4


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each pair of rules, at the later one."""
    spec = subject.plan.tensor_parallel
    auto = spec.auto.span if spec and spec.auto else None
    pairs: dict[tuple[Span, Span], list[str]] = {}
    for conflict in subject.bound.conflicts:
        pairs.setdefault((conflict.first, conflict.second), []).append(conflict.name)
    for (first, second), names in pairs.items():
        shown = exact_families(subject.inventory, names)
        more = f" and {len(shown) - _MAX_NAMES} more" if len(shown) > _MAX_NAMES else ""
        yield CODE.at(
            second,
            f"also matches {quoted(shown[:_MAX_NAMES])}{more}",
            secondary=(Label(first, "`auto` also covers it" if first == auto else "the earlier rule"),),
            help="write `override` before the rule that must win, or narrow one of the patterns",
        )
