"""Runs that end without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity

CODE = Code("P707", "nothing-saved", "this checkpoint block never saves", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning when a checkpoint block is there and no step of the run is saved.

    Of an elastic run, which must save more than that, another rule says so.
    """
    checkpoint, steps = subject.plan.checkpoint, subject.plan.train.steps
    if checkpoint is None or checkpoint.save_last or subject.plan.elastic is not None:
        return
    if checkpoint.save_every is None or checkpoint.save_every > steps:
        every = (
            f"none every {checkpoint.save_every} steps of {steps}" if checkpoint.save_every else "none before"
        )
        yield CODE.at(
            subject.plan.span("checkpoint.save_last"),
            f"no save at the end, and {every}",
            help=f"write `save_last = true`, or `save_every` of at most {steps} steps",
        )


RULE = Rule((CODE,), check)
