"""Intervals that are longer than the training."""

from __future__ import annotations

from planc.checks.run.nothing_saved import CODE as NOTHING_SAVED
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.tables import plural

CODE = Code("P710", "policy-beyond-training", "interval longer than the training", Severity.WARNING)


@reports(CODE, block="checkpoint", unless=(NOTHING_SAVED,))
def check(subject: Subject) -> Findings:
    """One warning for each interval that is longer than the training.

    The saves of an elastic run have a rule of their own.
    """
    plan = subject.plan
    saving = plan.checkpoint if plan.elastic is None else None
    every = {
        "checkpoint.save_every": saving.save_steps if saving else None,
        "train.log_every": plan.train.log_every,
    }
    for path, steps in every.items():
        if steps is not None and plan.train.steps is not None and steps > plan.train.steps:
            yield CODE.at(
                plan.span(path),
                f"every {steps} steps",
                secondary=(
                    Label(plan.span("train.steps"), f"{plural(plan.train.steps, 'step')} of training"),
                ),
                help=f"set `{path.rpartition('.')[2]}` to at most {plural(plan.train.steps, 'step')}",
            )
