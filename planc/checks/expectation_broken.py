"""What the plan asserts about itself."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping

from planc.checks.batch_indivisible import CODE as BATCH_INDIVISIBLE
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Fix
from planc.diagnostics.suggest import closest
from planc.plan.facts import COUNTS, ESTIMATED

CODE = Code("P702", "expectation-broken", "an expectation does not hold")
UNKNOWN = Code("P703", "unknown-fact", "nothing of this name follows from a plan")

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_FORMULAS: Mapping[str, str] = {
    "world_size": "dp_replicate x dp_shard x cp x tp",
    "dp_size": "dp_replicate x dp_shard",
    "gradient_accumulation": "tokens_per_step / (dp_size x micro_batch x sequence_length)",
    "tokens_per_step": "train.tokens_per_step, or dp_size x micro_batch x sequence_length",
    "sequences_per_step": "gradient_accumulation x dp_size x micro_batch",
    "total_tokens": "tokens_per_step x train.steps",
    "parameters": "elements of all parameters, tied ones once",
    **ESTIMATED,
}
"""Where each fact comes from, as `planc.plan.facts` has it."""

_GIB = 2**30


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding for each line of `expect` that is false, or that names no fact."""
    known = subject.facts
    for expectation in subject.plan.expectations:
        if expectation.subject not in known:
            near = closest(expectation.subject, known)
            yield UNKNOWN.at(
                expectation.subject_span,
                f"no fact `{expectation.subject}`",
                notes=(f"facts: {', '.join(known)}",),
                help=f"did you mean `{near}`?" if near else None,
                fix=Fix(expectation.subject_span, near, is_safe=True) if near else None,
            )
        elif not _OPERATORS[expectation.operator](known[expectation.subject], expectation.value):
            yield CODE.at(
                expectation.span,
                f"{expectation.subject} is {_written(expectation.subject, known[expectation.subject])}",
                notes=(f"{expectation.subject} = {_FORMULAS[expectation.subject]}",),
                help="correct the expectation, or the setting that changed",
            )


def _written(name: str, value: int) -> str:
    """A count as it is, a size in GiB."""
    return str(value) if name in COUNTS else f"{value / _GIB:.4g} GiB ({value} bytes)"


RULE = Rule((CODE, UNKNOWN), check, block="train", unless=(BATCH_INDIVISIBLE,))
