"""Adapters stored in a dtype that their layers do not compute in."""

from __future__ import annotations

from planc.checks.fsdp.fsdp_groups import cast_to
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.unit_dtypes import adapters_dtype

CODE = Code("P778", "adapters-not-cast", "nothing casts the adapters to their layers' dtype")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the adapters' dtype if FSDP does not cast all parameters to one dtype."""
    plan = subject.plan
    stored, fsdp = adapters_dtype(plan), plan.fsdp
    if stored is plan.model.dtype or (fsdp is not None and fsdp.param_dtype is not None):
        return
    yield CODE.at(
        plan.span("adapter.dtype"),
        f"adapters in {stored} next to layers in {plan.model.dtype}",
        help=cast_to(subject, plan.model.dtype),
    )
