"""Warm-ups that outlast the run."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label

CODE = Code("P706", "warmup-beyond-training", "the warm-up is longer than the training")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the schedule when the peak learning rate is never reached."""
    warmup, steps = subject.plan.optimizer.schedule.warmup, subject.plan.train.steps
    if warmup > steps:
        yield CODE.at(
            subject.plan.span("optimizer.schedule"),
            f"{warmup} steps of warm-up",
            secondary=(Label(subject.plan.span("train.steps"), f"{steps} steps of training"),),
            notes=("the learning rate would never reach its peak, and never come down",),
            help=f"make warmup a small part of the {steps} steps",
        )


RULE = Rule((CODE,), check)
