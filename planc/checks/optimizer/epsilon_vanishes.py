"""A division by zero in the optimizer."""

from __future__ import annotations

from planc.checks.fsdp.fsdp_groups import stored_in_float32
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.optimizer import Adam, optimizers_of
from planc.vocab import DType

CODE = Code("P709", "epsilon-vanishes", "the optimizer's eps rounds to zero")

_SMALLEST = {DType.FLOAT64: 4.9e-324, DType.FLOAT32: 1.4e-45, DType.BFLOAT16: 9.2e-41, DType.FLOAT16: 6.0e-8}
"""The smallest positive number in each dtype."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the optimizer if a gradient of zero would be divided by zero."""
    plan = subject.plan
    path, kind = optimizers_of(plan.optimizer.kind)[-1]
    if not isinstance(kind, Adam):
        return
    eps, stored = kind.eps, plan.model.dtype
    smallest = _SMALLEST[stored]
    if eps * 2 > smallest:
        return
    dtype = (Label(plan.span("model.dtype"), f"the smallest number above 0 here is {smallest:g}"),)
    yield CODE.at(
        plan.span(f"{path}.eps"),
        f"eps = {eps:g}",
        secondary=dtype if eps else (),
        notes=(
            "a weight with a zero gradient, such as the row of a token that a step lacks, would become 0 / 0",
        ),
        help=stored_in_float32(subject) if eps else "write `eps = 1e-8`",
    )
