"""Runs that end without a checkpoint."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.tables import plural

CODE = Code("P707", "nothing-saved", "the run saves nothing", Severity.WARNING)


_MANY_STEPS = 1000
"""A run of more steps is hardly a trial."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning if no step of the run is saved; without a checkpoint block, if the run is long.

    An elastic run must save more often, which is another rule's finding.
    """
    checkpoint, steps = subject.plan.checkpoint, subject.plan.train.steps
    if subject.plan.elastic is not None or steps is None:
        return
    if checkpoint is None:
        if steps > _MANY_STEPS:
            yield CODE.at(
                subject.plan.span("train.steps"),
                f"no `checkpoint` block, and {plural(steps, 'step')}",
                notes=("the trained weights would be lost at the end, and everything if a rank fails",),
                help="add `checkpoint { save_every = 500 steps }`",
            )
        return
    if checkpoint.save_last or checkpoint.save_seconds is not None:
        return
    if checkpoint.save_steps is None or checkpoint.save_steps > steps:
        every = (
            f"none every {checkpoint.save_steps} steps of {steps}" if checkpoint.save_steps else "none before"
        )
        yield CODE.at(
            subject.plan.span("checkpoint.save_last"),
            f"no save at the end, and {every}",
            help=f"write `save_last = true`, or set `save_every` to at most {plural(steps, 'step')}",
        )
