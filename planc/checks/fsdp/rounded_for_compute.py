"""Parameters that transformers keeps in float32, and FSDP rounds."""

from __future__ import annotations

from planc.checks.fsdp.dtypes_in_unit import CODE as DTYPES_IN_UNIT
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.layouts.families import families, quoted
from planc.plan.unit_dtypes import kept_from, parameters_by_unit

CODE = Code(
    "P737",
    "rounded-for-compute",
    "`param_dtype` rounds parameters that transformers keeps in float32",
    Severity.WARNING,
)

_MAX_LISTED = 3


@reports(CODE, block="fsdp", unless=(DTYPES_IN_UNIT,))
def check(subject: Subject) -> Findings:
    """One warning for all parameters in units with others. A unit of only such parameters is not cast."""
    fsdp, model = subject.plan.fsdp, subject.plan.model
    if fsdp is None or fsdp.param_dtype is None or fsdp.param_dtype is model.dtype:
        return
    kept = kept_from(subject.bound, fsdp.param_dtype)
    if not kept:
        return
    held = parameters_by_unit(subject.bound).values()
    rounded = [name for unit in held if not kept.issuperset(unit) for name in unit if name in kept]
    if rounded:
        names = families(subject.inventory, rounded)
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        yield CODE.at(
            subject.plan.span("fsdp.param_dtype"),
            f"computes {quoted(names[:_MAX_LISTED])}{more} in {fsdp.param_dtype}",
            notes=(f"in a {fsdp.param_dtype} model, transformers keeps these parameters in float32",),
            help="make modules with only such parameters units of their own, which planc does not cast, or "
            "leave out `param_dtype`",
        )
