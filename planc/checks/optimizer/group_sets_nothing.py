"""Parameter groups without a difference."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic

CODE = Code("P722", "group-sets-nothing", "a parameter group that sets nothing")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each group with neither option. An overriding one may undo what another rule set."""
    for rule in subject.plan.optimizer.rules:
        if not rule.override and rule.action.weight_decay is None and rule.action.lr is None:
            yield CODE.at(
                rule.action_span,
                "neither `weight_decay` nor `lr`",
                help="give one, as in `group(weight_decay = 0.0)`; or remove the rule",
            )


RULE = Rule((CODE,), check)
