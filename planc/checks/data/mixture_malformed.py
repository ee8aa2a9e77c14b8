"""Mixtures of sources that have no order."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label

CODE = Code("P751", "mixture-malformed", "the sources do not form a mixture")
MAX_SOURCES = 64


@reports(CODE)
def check(subject: Subject) -> Findings:
    """Findings for a single source next to others, for weights that only some have, and for too many."""
    plan = subject.plan
    mixture = plan.data.mixture
    paths = {label: f"data.source.{label}" for label in mixture}
    first = next(iter(paths.values()), "")
    if mixture and plan.data.source is not None:
        yield CODE.at(
            plan.span("data.source"),
            "a single source next to `source` blocks",
            secondary=(Label(plan.span(first), "one source of several"),),
            help='move it into a block of its own, `source "main" { source = ... }`',
        )
    without = [label for label, one in mixture.items() if one.weight is None]
    if without and len(without) < len(mixture):
        weighed = next(label for label, one in mixture.items() if one.weight is not None)
        yield CODE.at(
            plan.span(paths[without[0]]),
            "this source has no weight, and others have",
            secondary=(Label(plan.span(f"{paths[weighed]}.weight"), "a weight"),),
            help="give every source a `weight`; without any, each has its share of all sequences",
        )
    if len(mixture) > MAX_SOURCES:
        yield CODE.at(
            plan.span(first),
            f"{len(mixture)} sources; a mixture has at most {MAX_SOURCES}",
            help="give several sources one block: a source takes any number of patterns",
        )
