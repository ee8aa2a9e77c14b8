"""Parameters whose compute dtype is wider than their stored dtype."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label, Severity
from planc.vocab import DType

CODE = Code("P507", "computed-above-stored", "compute dtype is wider than the stored dtype", Severity.WARNING)

_NARROW = (DType.BFLOAT16, DType.FLOAT16)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning when `fsdp.param_dtype` widens what `model.dtype` has already rounded."""
    fsdp, stored = subject.plan.fsdp, subject.plan.model.dtype
    if fsdp is None or fsdp.param_dtype is None:
        return
    if stored in _NARROW and fsdp.param_dtype not in _NARROW:
        yield CODE.at(
            subject.plan.span("fsdp.param_dtype"),
            f"computes in {fsdp.param_dtype} with parameters stored in {stored}",
            secondary=(Label(subject.plan.span("model.dtype"), "updates are rounded to this dtype"),),
            notes=("updates below 1/256 of a weight would be lost, and gathers would send twice the bytes",),
            help=f"swap the two: `dtype = {fsdp.param_dtype}` in `model`, `param_dtype = {stored}` in `fsdp`",
        )
