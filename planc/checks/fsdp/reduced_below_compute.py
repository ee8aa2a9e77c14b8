"""Gradients whose reduce dtype is narrower than their compute dtype."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.vocab import DType

CODE = Code(
    "P506", "reduced-below-compute", "reduce dtype is narrower than the compute dtype", Severity.WARNING
)

_MANTISSA_BITS = {DType.FLOAT64: 52, DType.FLOAT32: 23, DType.FLOAT16: 10, DType.BFLOAT16: 7}


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning if `fsdp.reduce_dtype` is coarser than the compute dtype."""
    fsdp = subject.plan.fsdp
    if fsdp is None or fsdp.reduce_dtype is None:
        return
    computed = fsdp.param_dtype or subject.plan.model.dtype
    if _MANTISSA_BITS[fsdp.reduce_dtype] < _MANTISSA_BITS[computed]:
        yield CODE.at(
            subject.plan.span("fsdp.reduce_dtype"),
            f"reduces in {fsdp.reduce_dtype} what is computed in {computed}",
            help=f"write `reduce_dtype = {computed}`, or compute in {fsdp.reduce_dtype} with "
            f"`param_dtype = {fsdp.reduce_dtype}`",
        )
