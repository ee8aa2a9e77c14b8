"""Training in float16 without loss scaling."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.vocab import DType

CODE = Code("P803", "float16-unscaled", "float16 training without loss scaling", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning for each setting that gives gradients the dtype float16."""
    plan = subject.plan
    settings = {"model.dtype": plan.model.dtype}
    if plan.fsdp is not None:
        settings = {
            **settings,
            "fsdp.param_dtype": plan.fsdp.param_dtype or DType.FLOAT32,
            "fsdp.reduce_dtype": plan.fsdp.reduce_dtype or DType.FLOAT32,
        }
    for path, dtype in settings.items():
        if dtype is DType.FLOAT16:
            text = "gradients below 6e-8 would become zero, since planc does not scale the loss"
            yield CODE.at(plan.span(path), text, help="write `bfloat16`, which has the range of float32")


RULE = Rule((CODE,), check)
