"""A loss that the model's config.json asks for and that planc does not compute."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.layouts.families import quoted

CODE = Code("P725", "loss-left-out", "the balance of experts is no part of the loss", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning at the model whose own loss would have a term for the balance of its experts."""
    fields = subject.inventory.added_losses
    if fields:
        yield CODE.at(
            subject.plan.span("model.hf"),
            f"its config.json adds it to the loss, by `output_router_logits` and {quoted(fields)}",
            notes=("planc trains by cross-entropy alone",),
            help="set output_router_logits to false in config.json, where that is what you want",
        )


RULE = Rule((CODE,), check)
