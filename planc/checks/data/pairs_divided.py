"""Settings that would divide a pair of answers, or that a preference loss is not computed with."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.data import Packing
from planc.plan.spec import Plan
from planc.plan.train import Preference

CODE = Code("P758", "pairs-divided", "a preference loss can't be computed with this setting")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each setting."""
    plan = subject.plan
    if not isinstance(plan.train.loss, Preference):
        return
    for path, reason, help in _obstacles(plan):
        secondary = (Label(plan.span("train.loss"), "the loss"),)
        yield CODE.at(plan.span(path), reason, secondary=secondary, help=help)


def _obstacles(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """The path of each setting, the reason, and what to write."""
    data = plan.data
    if data.micro_batch % 2:
        help = f"write `micro_batch = {data.micro_batch + 1}`"
        yield "data.micro_batch", "both answers of a pair are sequences of one micro-batch", help
    if data.packing is not Packing.NONE:
        yield "data.packing", "each sequence holds one answer", "write `packing = none`, or leave it out"
    if data.skip_bad:
        yield "data.skip_bad", "it may leave out one answer of a pair", "remove it, and the bad rows"
    for name, evaluation in data.eval.items():
        if evaluation.sequences is not None and evaluation.sequences % 2:
            help = f"write `sequences = {evaluation.sequences + 1}`"
            yield f"data.eval.{name}.sequences", "each answer of a pair is a sequence", help
    if plan.balance is not None:
        yield "balance", "its losses are means over tokens, and this one over pairs", "remove the block"
