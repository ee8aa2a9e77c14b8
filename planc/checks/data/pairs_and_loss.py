"""Pairs of answers without a loss of pairs, and the reverse."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.conversations import Pairs
from planc.plan.train import Preference

CODE = Code("P757", "pairs-and-loss", "a preference loss and pairs of answers need each other")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each source of pairs that no loss reads, and one for a loss that has none."""
    plan = subject.plan
    is_preference = isinstance(plan.train.loss, Preference)
    for path, source in plan.data.sources():
        if isinstance(source, Pairs) and not (is_preference and path == "data.source"):
            if is_preference:
                text = "pairs are read from the one `source` of `data` alone"
                help = "write `source = pairs(...)` in `data`, with several files if need be"
            else:
                text = "this loss is of tokens, not of pairs"
                help = "write `loss = dpo(beta = 0.1)` in `train`"
            secondary = (Label(plan.span("train.loss"), "the loss"),)
            yield CODE.at(plan.span(path), text, secondary=secondary, help=help)
    if is_preference and not isinstance(plan.data.source, Pairs):
        place = "data.source" if plan.data.source is not None else "data"
        yield CODE.at(
            plan.span("train.loss"),
            "it compares the two answers of each pair",
            secondary=(Label(plan.span(place), "no pairs"),),
            help='write `source = pairs("pairs.jsonl")` in `data`',
        )
