"""Optimizer steps too small for the dtype of the parameters."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.fsdp.fsdp_groups import stored_in_float32
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label, Severity
from planc.plan.optimizer import AdamW
from planc.vocab import DType

CODE = Code("P714", "updates-rounded-away", "weights near 1 never change in this dtype", Severity.WARNING)

_BELOW_ONE = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}
"""From 1 down to the next number of each dtype."""


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning at `model.dtype` when a step of about lr is rounded away from a norm's weights.

    AdamW's steps are no larger; SGD's are if gradients are above 1, which in training they are not for long.
    """
    plan, kind = subject.plan, subject.plan.optimizer.kind
    gap, lr = _BELOW_ONE.get(plan.model.dtype), kind.lr
    # Half a gap rounds back to the number that the step started from.
    if gap is None or not 0 < lr <= gap / 2:
        return
    step = "of AdamW is about lr" if isinstance(kind, AdamW) else "of SGD is a gradient times lr"
    yield CODE.at(
        plan.span("model.dtype"),
        f"below 1 comes {1 - gap:g} in {plan.model.dtype}",
        secondary=(Label(plan.span("optimizer.kind.lr"), f"a step {step} = {lr:g}"),),
        notes=("norms start at 1, and many other weights are too large for so small a step",),
        help=stored_in_float32(subject),
    )


RULE = Rule((CODE,), check)
