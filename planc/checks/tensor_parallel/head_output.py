"""Logits in a layout that the loss cannot take."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import TENSOR_PARALLEL_FAULTS
from planc.diagnostics import Code, Diagnostic
from planc.layouts.types import FEATURES, WHOLE
from planc.vocab import MeshDim

CODE = Code("P410", "head-output", "the loss cannot take the logits in this layout")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the rule of the last layer when its logits are neither whole nor divided by vocabulary.

    Only a head with a row for every token is known to divide by vocabulary.
    """
    head, inventory = subject.inventory.head, subject.inventory
    read = {fqn for module in inventory.modules for fqn in (*module.sources, *module.returns)}
    for module in inventory.modules:
        assignment = subject.bound.styles.get(module.fqn)
        if assignment is None or not module.sources or module.fqn in read:
            continue
        allowed = (WHOLE, FEATURES) if module == head else (WHOLE,)
        if module.parameters and assignment.use.output not in allowed:
            yield CODE.at(
                assignment.span,
                f"`{assignment.fqn}` leaves {assignment.use.output}",
                notes=("the loss takes logits whole, or divided by vocabulary as Shard(-1)",),
                help="`output = Shard(-1)` keeps the vocabulary divided, `output = Replicate()` gathers it"
                if module == head
                else "write `output = Replicate()`",
            )


RULE = Rule((CODE,), check, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
