"""Parameter groups without an option."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code

CODE = Code("P722", "group-sets-nothing", "a parameter group sets nothing")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each group without options. An `override` may use one to undo another rule."""
    for rule in subject.plan.optimizer.rules:
        group = rule.action
        if not rule.override and group.weight_decay is None and group.lr is None and group.rest is None:
            yield CODE.at(
                rule.action_span,
                "sets neither `weight_decay` nor `lr`",
                help="set one, as in `group(weight_decay = 0.0)`, or remove the rule",
            )
