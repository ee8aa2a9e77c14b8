"""Optimizer steps too small for the dtype of the parameters."""

from __future__ import annotations

from math import floor, log2

from planc.checks.fsdp.fsdp_groups import cast_to, stored_in_float32
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.inventory.adapters import adapted_layer
from planc.plan.optimizer import Adam, optimizers_of
from planc.plan.unit_dtypes import adapters_dtype
from planc.vocab import DOWN, DType

CODE = Code("P714", "updates-rounded-away", "updates are too small for this dtype", Severity.WARNING)

_BELOW_ONE = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}
"""The distance from 1 down to the next number in each dtype."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning at the dtype if rounding would discard a norm's update of about lr, or an adapter's.

    AdamW's updates are at most that large; SGD's are larger only for gradients above 1, which don't last.
    """
    plan, start = subject.plan, _start_of_adapters(subject)
    dtype = plan.model.dtype if start is None else adapters_dtype(plan)
    path, kind = optimizers_of(plan.optimizer.kind)[-1]
    if dtype not in _BELOW_ONE:
        return
    size, lr = start or 1.0, kind.lr
    gap = _BELOW_ONE[dtype] * 2.0 ** floor(log2(size))
    # Half a gap rounds back to the original number.
    if not 0 < lr <= gap / 2:
        return
    text, note = f"the next number below 1 is {1 - gap:g} in {dtype}", _OF_NORMS
    if start is not None:
        text, note = f"numbers near {size:.3g} are {gap:.2g} apart in {dtype}", _OF_ADAPTERS
    step = "of AdamW is about lr" if isinstance(kind, Adam) else "of SGD is the gradient times lr"
    yield CODE.at(
        plan.span("adapter.dtype" if plan.adapter is not None and plan.adapter.dtype else "model.dtype"),
        text,
        secondary=(Label(plan.span(f"{path}.lr"), f"an update {step} = {lr:g}"),),
        notes=(note,),
        help=stored_in_float32(subject) if start is None else _adapters_in_float32(subject),
    )


_OF_NORMS = "norm weights start at 1 and would never change, nor would many other large weights"
_OF_ADAPTERS = "adapters start with weights of this size, most of which would never change"


def _start_of_adapters(subject: Subject) -> float | None:
    """About the largest weights of adapters at the start; None if others are trained as well.

    A starts within 1 / sqrt(inputs); the lengths of rows that DoRA trains are near 1.
    """
    adapter, frozen = subject.plan.adapter, subject.bound.frozen
    shapes = {fqn: weight.shape for fqn, _, weight in subject.inventory.parameters() if fqn not in frozen}
    if adapter is None or not shapes or not all(map(adapted_layer, shapes)):
        return None
    widths = [shape[-1] for fqn, shape in shapes.items() if DOWN in fqn]
    return 1.0 if adapter.kind.dora else min(widths) ** -0.5


def _adapters_in_float32(subject: Subject) -> str:
    """The edit that stores adapters in float32, and computes as before."""
    fsdp = subject.plan.fsdp
    stored = "write `dtype = float32` in `adapter`"
    is_cast = fsdp is not None and fsdp.param_dtype is not None
    return stored if is_cast else f"{stored}, and {cast_to(subject, subject.plan.model.dtype)}"
