"""Runs that end without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.tables import plural

CODE = Code("P707", "nothing-saved", "the `checkpoint` block never saves", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning if there is a checkpoint block and no step of the run is saved.

    An elastic run must save more often, which is another rule's finding.
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
            help=f"write `save_last = true`, or set `save_every` to at most {plural(steps, 'step')}",
        )


RULE = Rule((CODE,), check)
