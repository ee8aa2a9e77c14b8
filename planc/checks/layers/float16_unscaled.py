"""Training in float16 without loss scaling."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.vocab import DType

CODE = Code("P803", "float16-unscaled", "float16 training without loss scaling", Severity.WARNING)


@reports(CODE)
def check(subject: Subject) -> Findings:
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
