"""Settings that would divide pairs, or groups of them, or that a loss of pairs is not computed with."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.data import Packing
from planc.plan.facts import sequences_together
from planc.plan.spec import Plan
from planc.plan.task import Embedding
from planc.plan.train import Contrastive, Preference

CODE = Code("P758", "pairs-divided", "a loss of pairs can't be computed with this setting")


@reports(CODE, unless_refused=True)
def check(subject: Subject) -> Findings:
    """One finding for each setting."""
    plan = subject.plan
    if not isinstance(plan.train.loss, Preference | Contrastive):
        return
    if isinstance(plan.train.loss, Contrastive) and not isinstance(plan.model.task, Embedding):
        return
    for path, reason, help in _obstacles(plan, plan.train.loss):
        secondary = (Label(plan.span("train.loss"), "the loss"),)
        yield CODE.at(plan.span(path), reason, secondary=secondary, help=help)


def _obstacles(plan: Plan, loss: Preference | Contrastive) -> Iterator[tuple[str, str, str]]:
    """The path of each setting, the reason, and what to write."""
    data, size = plan.data, sequences_together(plan)
    if data.micro_batch % size:
        help = f"write `micro_batch = {-(-data.micro_batch // size) * size}`"
        reason = "both answers of a pair are sequences of one micro-batch"
        if isinstance(loss, Contrastive):
            help += ", or another `group`"
            reason = f"a group of {loss.group} pairs is {size} sequences of one micro-batch"
        yield "data.micro_batch", reason, help
    if data.packing is not Packing.NONE:
        help = "write `packing = none`, or leave it out"
        yield "data.packing", "each sequence holds one text of a pair", help
    for name, evaluation in data.eval.items():
        if evaluation.sequences is not None and evaluation.sequences % 2:
            help = f"write `sequences = {evaluation.sequences + 1}`"
            yield f"data.eval.{name}.sequences", "each text of a pair is a sequence", help
    if plan.balance is not None and isinstance(loss, Preference):
        yield "balance", "its losses are means over tokens, and this one over pairs", "remove the block"
