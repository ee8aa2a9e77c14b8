"""Parameters that are stored in fewer bits than they are computed in."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label, Severity
from planc.vocab import DType

CODE = Code(
    "P507", "computed-above-stored", "parameters are computed in more bits than stored", Severity.WARNING
)

_NARROW = (DType.BFLOAT16, DType.FLOAT16)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning when `fsdp.param_dtype` widens what `model.dtype` has already rounded."""
    fsdp, stored = subject.plan.fsdp, subject.plan.model.dtype
    if fsdp is None or fsdp.param_dtype is None:
        return
    if stored in _NARROW and fsdp.param_dtype not in _NARROW:
        yield CODE.at(
            subject.plan.span("fsdp.param_dtype"),
            f"{fsdp.param_dtype} of parameters stored in {stored}",
            secondary=(Label(subject.plan.span("model.dtype"), "updates are rounded to this"),),
            notes=("steps smaller than 1/256 of a weight are lost, and gathers cost twice the bytes",),
            help=f"store in {fsdp.param_dtype} and compute in {stored}: exchange the two",
        )


RULE = Rule((CODE,), check)
