"""Units that name one module twice."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.layouts.families import families, quoted
from planc.plan.spec import PatternRule, Unit
from planc.vocab import ancestors

CODE = Code("P504", "module-in-two-units", "a module is in two FSDP units")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each rule that repeats modules of an earlier unit, or lists a module and its parent."""
    fsdp = subject.plan.fsdp
    if fsdp is None:
        return
    names = subject.inventory.names()
    seen: dict[str, PatternRule[Unit]] = {}
    for rule in fsdp.rules:
        named = {name for pattern in rule.patterns for name in pattern.select(names)}
        matched = [name for name in names if name in named]
        twice = [name for name in matched if name in seen and seen[name].action == rule.action]
        # A rule for single modules may repeat another such rule; a list makes one unit of all its modules.
        shared = [name for name in twice if len(rule.patterns) > 1 or len(seen[name].patterns) > 1]
        if shared and not rule.override and not seen[shared[0]].override:
            yield CODE.at(
                rule.span,
                f"names {quoted(families(subject.inventory, shared)[:3])} again",
                secondary=(Label(seen[shared[0]].span, "first named here"),),
                help="name each module in one unit",
            )
        if len(rule.patterns) > 1:
            yield from _nested(rule, matched)
        for name in matched:
            seen.setdefault(name, rule)


def _nested(rule: PatternRule[Unit], matched: list[str]) -> Findings:
    """A unit of several modules, one of which contains another: torch drops the inner one."""
    members = set(matched)
    for name in matched:
        parent = min(members.intersection(ancestors(name)), key=len, default=None)
        if parent is not None:
            help = f"leave `{name}` out of the list, or give it a unit of its own"
            yield CODE.at(rule.span, f"`{name}` is part of `{parent}`", help=help)
            return
