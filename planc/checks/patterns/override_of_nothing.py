"""Rules that override nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Applicability, Code, Fix, Severity
from planc.plan.pattern import parse_own
from planc.plan.spec import PatternRule

CODE = Code("P218", "override-of-nothing", "this rule overrides nothing", Severity.WARNING)

_WORD = "override "


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each `override` rule in the plan's own file that overlaps with no other rule.

    In an included file, `override` may be needed by another plan or another model.
    """
    plan = subject.plan
    file = plan.span("").file
    blocks = (
        plan.tensor_parallel,
        plan.expert_parallel,
        plan.fsdp,
        plan.context_parallel,
        plan.activation_checkpoint,
        plan.compile,
        plan.freeze,
        plan.adapter,
        plan.optimizer,
    )
    for rules in (block.rules for block in blocks if block is not None):
        for rule in rules:
            if rule.override and rule.span.file == file and _is_idle(rule, rules, subject):
                start = rule.span
                word = replace(start, end_line=start.line, end_column=start.column + len(_WORD))
                yield CODE.at(
                    replace(word, end_column=word.end_column - 1),
                    "no other rule matches these names",
                    help="remove `override`; planc will then report a rule that conflicts with this one",
                    fix=Fix(word, "", Applicability.SAFE),
                )


def _is_idle(rule: PatternRule[Any], rules: Sequence[PatternRule[Any]], subject: Subject) -> bool:
    names = _matched(rule, subject)
    others = (_matched(other, subject) for other in rules if other is not rule)
    return bool(names) and not names & _automatic(rule, subject) and all(names.isdisjoint(o) for o in others)


def _matched(rule: PatternRule[Any], subject: Subject) -> frozenset[str]:
    patterns = {id(pattern) for pattern in rule.patterns}
    found = (selection.matched for selection in subject.bound.selections if id(selection.pattern) in patterns)
    return frozenset(name for matched in found for name in matched)


def _automatic(rule: PatternRule[Any], subject: Subject) -> frozenset[str]:
    """The names that `auto` covers, if the rule is in the same block."""
    spec = subject.plan.tensor_parallel
    if spec is None or spec.auto is None or rule not in spec.rules:
        return frozenset()
    own = [parse_own(one.pattern, spec.auto.span) for one in subject.bound.auto.rules]
    return frozenset(name for pattern in own for name in pattern.select(subject.inventory.names()))
