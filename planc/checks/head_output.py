"""Logits in a layout that the loss cannot take."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.layout_flow import FEATURES, WHOLE
from planc.checks.model import Rule, Subject
from planc.checks.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim

CODE = Code("P410", "head-output", "the loss cannot take the logits in this layout")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the head's rule when its logits are neither whole nor divided by vocabulary."""
    head = subject.inventory.head
    assignment = subject.bound.styles.get(head.fqn) if head else None
    if assignment and assignment.use.output not in (WHOLE, FEATURES):
        yield CODE.at(
            assignment.span,
            f"`{assignment.fqn}` leaves {assignment.use.output}",
            notes=("the loss takes logits whole, or divided by vocabulary as Shard(-1)",),
            help="`output = Shard(-1)` keeps the vocabulary divided, `output = Replicate()` gathers it",
        )


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
