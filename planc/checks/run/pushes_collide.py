"""Exports that would delete each other's weights on the Hub."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P777", "pushes-collide", "two exports are pushed to one branch")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each export whose target an earlier one has."""
    plan = subject.plan
    taken: dict[tuple[str, str], str] = {}
    for label, export in (plan.checkpoint.export if plan.checkpoint else {}).items():
        if export.push is None:
            continue
        target = (export.push.repository.lower(), export.push.revision)
        first = taken.setdefault(target, label)
        if first != label:
            yield CODE.at(
                plan.span(f"checkpoint.export.{label}.push"),
                f"branch `{target[1]}` of `{export.push.repository}` would keep the last one only",
                secondary=(Label(plan.span(f"checkpoint.export.{first}.push"), "the same branch"),),
                help='push one to another repository, or to another branch: `revision = "adapter"`',
            )
