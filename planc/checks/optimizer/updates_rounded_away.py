"""Optimizer steps too small for the dtype of the parameters."""

from __future__ import annotations

from planc.checks.fsdp.fsdp_groups import stored_in_float32
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.plan.optimizer import Adam, optimizers_of
from planc.vocab import DType

CODE = Code("P714", "updates-rounded-away", "updates are too small for this dtype", Severity.WARNING)

_BELOW_ONE = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}
"""The distance from 1 down to the next number in each dtype."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning at `model.dtype` if rounding would discard a norm's update of about lr.

    AdamW's updates are at most that large; SGD's are larger only for gradients above 1, which don't last.
    """
    plan = subject.plan
    path, kind = optimizers_of(plan.optimizer.kind)[-1]
    gap, lr = _BELOW_ONE.get(plan.model.dtype), kind.lr
    # Half a gap rounds back to the original number.
    if gap is None or not 0 < lr <= gap / 2:
        return
    step = "of AdamW is about lr" if isinstance(kind, Adam) else "of SGD is the gradient times lr"
    yield CODE.at(
        plan.span("model.dtype"),
        f"the next number below 1 is {1 - gap:g} in {plan.model.dtype}",
        secondary=(Label(plan.span(f"{path}.lr"), f"an update {step} = {lr:g}"),),
        notes=("norm weights start at 1 and would never change, nor would many other large weights",),
        help=stored_in_float32(subject),
    )
