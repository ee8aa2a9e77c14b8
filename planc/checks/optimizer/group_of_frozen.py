"""Parameter groups that hold frozen parameters only."""

from __future__ import annotations

from planc.checks.optimizer.nothing_trained import CODE as NOTHING_TRAINED
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity

CODE = Code("P761", "group-of-frozen", "a parameter group has no parameter to train", Severity.WARNING)


@reports(CODE, unless=(NOTHING_TRAINED,))
def check(subject: Subject) -> Findings:
    """One finding for each rule of `optimizer` whose parameters are all frozen."""
    frozen = subject.bound.frozen
    by_pattern = {id(selection.pattern): selection.matched for selection in subject.bound.selections}
    for rule in subject.plan.optimizer.rules if frozen else ():
        names = [name for pattern in rule.patterns for name in by_pattern[id(pattern)]]
        if names and all(name in frozen for name in names):
            yield CODE.at(
                rule.span,
                "sets options of frozen parameters only",
                secondary=(Label(frozen[names[0]], f"`{names[0]}` is frozen here"),),
                help="remove the group, or the rule that freezes its parameters",
            )
