"""Logits in a layout that the loss does not support."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject
from planc.checks.tensor_parallel.tensor_parallel_faults import judges_layouts
from planc.diagnostics import Code
from planc.layouts.types import WHOLE
from planc.styles import Style
from planc.styles.edges import FEATURES

CODE = Code("P410", "head-output", "the loss does not support this layout of logits")


@judges_layouts(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the rule of the head if its logits are neither whole nor sharded by vocabulary.

    Only a head with a row for every token can be sharded by vocabulary.
    """
    head, inventory = subject.inventory.head, subject.inventory
    styles = subject.bound.styles
    read = {fqn for module in inventory.modules for fqn in (*module.sources, *module.returns)}
    # Logits may leave a module around the head, which may give them another layout.
    laid_out_again = {fqn for module in inventory.modules if module.fqn in styles for fqn in module.returns}
    for module in inventory.modules:
        assignment = styles.get(module.fqn)
        is_read = module.fqn in (laid_out_again if module == head else read)
        if assignment is None or not module.sources or is_read:
            continue
        allowed = (WHOLE, FEATURES) if module == head else (WHOLE,)
        if module.parameters and assignment.use.output not in allowed:
            yield CODE.at(
                assignment.span,
                f"`{assignment.fqn}` outputs {assignment.use.output}",
                notes=("the loss needs whole logits, or logits sharded by vocabulary: Shard(-1)",),
                help=_help(assignment.style, is_head=module == head),
            )


def _help(style: Style, *, is_head: bool) -> str:
    if "output" not in style.options:
        return "write `colwise(input = Shard(1), output = Shard(-1))`" if is_head else "use another style"
    if is_head:
        return "write `output = Shard(-1)` to shard the vocabulary, or `output = Replicate()`"
    return "write `output = Replicate()`"
