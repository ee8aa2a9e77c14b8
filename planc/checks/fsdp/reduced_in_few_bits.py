"""Gradients of many ranks reduced in a low-precision dtype."""

from __future__ import annotations

from math import prod

from planc.checks.fsdp.reduced_below_compute import CODE as REDUCED_BELOW_COMPUTE
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.plan.spec import FsdpSpec, Plan
from planc.source import Span
from planc.vocab import DType, MeshDim

CODE = Code(
    "P521", "reduced-in-few-bits", "gradients of many ranks are reduced imprecisely", Severity.WARNING
)

_ROUNDING = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}
"""The largest relative error of one rounding."""
_TOLERATED = 1 / 8
_Sum = tuple[DType, tuple[MeshDim, ...], Span, str]
"""A reduction: its dtype, its mesh dims, its place in the plan, and the edit that fixes it."""


@reports(CODE, block="fsdp", unless=(REDUCED_BELOW_COMPUTE,))
def check(subject: Subject) -> Findings:
    """One warning for each reduction over ranks that may be off by an eighth.

    A sum of n numbers of one sign, rounded after each addition, is off by up to n - 1 roundings (Higham,
    Accuracy and Stability of Numerical Algorithms, 4.2): from 34 ranks on in bfloat16, 258 in float16.
    """
    plan = subject.plan
    dtype, mesh_dims, span, help = _of_units(plan, plan.fsdp) if plan.fsdp else _of_whole_replicas(plan)
    num_ranks = prod(plan.mesh.size(mesh_dim) for mesh_dim in mesh_dims)
    error = (num_ranks - 1) * _ROUNDING.get(dtype, 0.0)
    if error > _TOLERATED:
        yield CODE.at(
            span,
            f"{num_ranks} ranks reduce in {dtype}",
            notes=(
                f"every addition rounds, so a sum may be off by {100 * min(error, 1.0):.0f} %, and a rank's "
                "gradient may be lost",
            ),
            help=help,
        )


def _of_units(plan: Plan, fsdp: FsdpSpec) -> _Sum:
    dtype = fsdp.reduce_dtype or fsdp.param_dtype or plan.model.dtype
    mesh_dims = (*fsdp.on, *((fsdp.replicate_on,) if fsdp.replicate_on else ()))
    return dtype, mesh_dims, _span(plan, fsdp), "write `reduce_dtype = float32` in `fsdp`"


def _of_whole_replicas(plan: Plan) -> _Sum:
    """A reduction in the gradients' own dtype."""
    help = (
        "write `dtype = float32` in `model`, or let `fsdp` reduce with `replicate_on = dp_replicate` and "
        "`reduce_dtype = float32`"
    )
    return plan.model.dtype, (MeshDim.DP_REPLICATE,), plan.span("model.dtype"), help


def _span(plan: Plan, fsdp: FsdpSpec) -> Span:
    """Return the span of the reduction's dtype in the plan."""
    if fsdp.reduce_dtype is not None:
        return plan.span("fsdp.reduce_dtype")
    return plan.span("fsdp.param_dtype") if fsdp.param_dtype is not None else fsdp.span
