"""Models that draw random numbers in training."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted

CODE = Code("P724", "random-training", "the model draws random numbers in training")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the model, unless the plan sets the rates to 0."""
    model, fields = subject.plan.model, subject.inventory.random
    if not fields or not model.dropout:
        return
    yield CODE.at(
        subject.plan.span("model.hf"),
        f"{quoted(fields)} of its config.json {'is' if len(fields) == 1 else 'are'} not 0",
        notes=("every mesh and resumed run would draw different numbers, even for tensors that ranks share",),
        help="write `dropout = false` in `model`, which sets them to 0",
    )


RULE = Rule((CODE,), check)
