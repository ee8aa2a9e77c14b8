"""Training in float16 without loss scaling."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Severity
from planc.vocab import DType

CODE = Code("P803", "float16-unscaled", "planc does not scale the loss for float16", Severity.WARNING)


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One warning for each setting that makes gradients float16."""
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
            text = "gradients below 6e-8 become zero"
            yield CODE.at(plan.span(path), text, help="use bfloat16, whose range is that of float32")


RULE = Rule((CODE,), check)
