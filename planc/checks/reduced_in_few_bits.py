"""Gradients of many ranks summed in a dtype of few bits."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planc.checks.model import Rule, Subject
from planc.checks.reduced_below_compute import CODE as REDUCED_BELOW_COMPUTE
from planc.diagnostics import Code, Diagnostic, Severity
from planc.plan.spec import FsdpSpec, Plan
from planc.source import Span
from planc.vocab import DType

CODE = Code("P521", "reduced-in-few-bits", "gradients of many ranks are summed in few bits", Severity.WARNING)

_ROUNDING = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}
"""The most that one rounding changes a number, relative to it."""
_TOLERATED = 1 / 8


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning where summing over the ranks of `fsdp` may cost an eighth of a gradient.

    A sum of n numbers of one sign, rounded after each addition, is off by up to n - 1 roundings (Higham,
    Accuracy and Stability of Numerical Algorithms, 4.2): from 34 ranks on in bfloat16, 258 in float16.
    """
    plan = subject.plan
    if plan.fsdp is None:
        return
    dtype = plan.fsdp.reduce_dtype or plan.fsdp.param_dtype or plan.model.dtype
    mesh_dims = (*plan.fsdp.on, *((plan.fsdp.replicate_on,) if plan.fsdp.replicate_on else ()))
    num_ranks = prod(plan.mesh.size(mesh_dim) for mesh_dim in mesh_dims)
    error = (num_ranks - 1) * _ROUNDING.get(dtype, 0.0)
    if error > _TOLERATED:
        yield CODE.at(
            _span(plan, plan.fsdp),
            f"{num_ranks} ranks add up in {dtype}",
            notes=(
                f"every addition rounds: a sum may be off by {100 * min(error, 1.0):.0f} %, and what a rank "
                "adds to it may be lost",
            ),
            help="write `reduce_dtype = float32` in `fsdp`",
        )


def _span(plan: Plan, fsdp: FsdpSpec) -> Span:
    """Where the dtype of the sums is written."""
    if fsdp.reduce_dtype is not None:
        return plan.span("fsdp.reduce_dtype")
    return plan.span("fsdp.param_dtype") if fsdp.param_dtype is not None else fsdp.span


RULE = Rule((CODE,), check, block="fsdp", unless=(REDUCED_BELOW_COMPUTE,))
