"""An auxiliary loss that config.json enables and that planc does not compute."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.layouts.families import quoted

CODE = Code("P725", "loss-left-out", "the load-balancing loss of experts is left out", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning at a model whose own loss would have a load-balancing term."""
    fields = subject.inventory.added_losses
    if fields:
        yield CODE.at(
            subject.plan.span("model.hf"),
            f"its config.json enables this loss with `output_router_logits` and {quoted(fields)}",
            notes=("planc trains with cross-entropy only, so experts could become unbalanced",),
            help="set output_router_logits to false in config.json to train without it",
        )


RULE = Rule((CODE,), check)
