"""Training that chance decides."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted

CODE = Code("P724", "random-training", "the model draws random numbers in training, no two meshes alike")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the model, unless the plan takes what draws as 0."""
    model, fields = subject.plan.model, subject.inventory.random
    if not fields or not model.dropout:
        return
    yield CODE.at(
        subject.plan.span("model.hf"),
        f"{quoted(fields)} of its config.json {'is' if len(fields) == 1 else 'are'} not 0",
        notes=("every rank and every resumed run would draw others, also for a tensor that ranks share",),
        help="write `dropout = false` in the model block, which takes them as 0",
    )


RULE = Rule((CODE,), check)
