"""Pairs of answers without a loss of pairs, and the reverse."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.conversations import Pairs
from planc.plan.train import Preference

CODE = Code("P757", "pairs-and-loss", "a preference loss and pairs of answers need each other")


_TOKENS = "this loss is of tokens, not of pairs", "write `loss = dpo(beta = 0.1)` in `train`"
_MIXED = (
    "pairs are read from the one `source` of `data` alone",
    "write `source = pairs(...)` in `data`, with several files if need be",
)
_EVALUATED = (
    "an evaluation computes the loss of training, which is of pairs",
    'write `source = pairs("held_out.jsonl")`, or a `share` of the training pairs',
)


@reports(CODE, unless_refused=True)
def check(subject: Subject) -> Findings:
    """One finding for each source that the loss can't be computed of, and one for a loss without pairs."""
    plan = subject.plan
    is_preference = isinstance(plan.train.loss, Preference)
    for path, source in plan.data.sources():
        is_evaluated = path.startswith("data.eval.")
        wrong = None
        if isinstance(source, Pairs) and not is_preference:
            wrong = _TOKENS
        elif isinstance(source, Pairs) and not is_evaluated and path != "data.source":
            wrong = _MIXED
        elif is_preference and is_evaluated and not isinstance(source, Pairs):
            wrong = _EVALUATED
        if wrong is not None:
            text, help = wrong
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
