"""Losses in chunks that the model, or another setting of the plan, does not allow."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.loss_chunks import local_tokens, obstacles

CODE = Code("P726", "loss-in-chunks", "the loss can't be computed in chunks")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each obstacle to the number of chunks that a plan asks for."""
    plan, chunks = subject.plan, subject.plan.train.loss_chunks
    if chunks in (1, "auto"):
        return
    span = plan.span("train.loss_chunks")
    for obstacle in obstacles(subject.bound):
        secondary = () if obstacle.span is None else (Label(obstacle.span, "here"),)
        yield CODE.at(span, obstacle.reason, secondary=secondary, help=obstacle.help)
    tokens = local_tokens(plan)
    if isinstance(chunks, int) and tokens % chunks:
        lower = next(number for number in range(min(chunks, tokens), 0, -1) if tokens % number == 0)
        yield CODE.at(
            span,
            f"{tokens:_} tokens of a rank's micro-batch are not divisible by {chunks:_}",
            notes=("micro_batch x sequence_length / cp tokens",),
            help=f"write `loss_chunks = {lower}`, or `auto`",
        )
