"""A loss of the plan's own code that the plan says to compile."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.train import Contrastive, CrossEntropy, Distillation, Preference

CODE = Code("P816", "compiled-own-loss", "only cross entropy is compiled")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """A finding for `loss = true` that the plan writes next to a loss of its own."""
    plan = subject.plan
    is_written = "compile.loss" in plan.spans
    if plan.compile is None or not plan.compile.loss or not is_written:
        return
    loss = plan.train.loss
    is_known = isinstance(loss, CrossEntropy | Contrastive | Preference | Distillation)
    own = "another loss of planc's" if is_known else "a loss of the plan's own code"
    if not isinstance(loss, CrossEntropy) or loss.has_terms:
        yield CODE.at(
            plan.span("compile.loss"),
            "planc compiles plain cross entropy alone",
            secondary=(Label(plan.span("train.loss"), own),),
            help="leave it out: the layers are compiled all the same",
        )
