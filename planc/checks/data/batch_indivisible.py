"""The tokens of a step that are not a multiple of a micro step's."""

from __future__ import annotations

from math import lcm

from planc.checks.context_parallel.sequence_over_cp import CODE as SEQUENCE_OVER_CP
from planc.checks.support.legal_values import choices, divisors, multiples_around
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.tensor_parallel.sequence_indivisible import CODE as SEQUENCE_INDIVISIBLE
from planc.diagnostics import Code, Label
from planc.plan.elastic_meshes import smaller_plans
from planc.plan.facts import tokens_per_micro_step
from planc.tables import plural

CODE = Code("P701", "batch-indivisible", "`tokens_per_step` is not a multiple of a micro step")


@reports(CODE, unless=(SEQUENCE_INDIVISIBLE, SEQUENCE_OVER_CP))
def check(subject: Subject) -> Findings:
    """One finding at `train.tokens_per_step` if gradient accumulation would be fractional.

    For an elastic plan, the help lists values for all its meshes.
    """
    plan = subject.plan
    wanted, each = plan.train.tokens_per_step, tokens_per_micro_step(plan)
    if wanted is None or wanted % each == 0:
        return
    data = plan.data
    ranks = f"each of {plan.mesh.dp_size} data-parallel ranks" if plan.mesh.dp_size > 1 else "one rank"
    sequences = f"{plural(data.micro_batch, 'sequence')} on {ranks}"
    every = lcm(each, *(tokens_per_micro_step(other) for other in (*subject.meshes, *smaller_plans(plan))))
    yield CODE.at(
        plan.span("train.tokens_per_step"),
        f"{wanted} tokens are not a multiple of {each}, the tokens of a micro step",
        secondary=(
            Label(plan.span("data.micro_batch"), sequences),
            Label(plan.span("data.sequence_length"), f"{data.sequence_length} tokens each"),
        ),
        help=f"{_micro_batches(subject, wanted)}set `tokens_per_step` to "
        f"{choices(multiples_around(wanted, of=every), near=wanted)}",
    )


def _micro_batches(subject: Subject, wanted: int) -> str:
    """The micro batches with which the tokens of a step stay as they are, `` or `` included."""
    plan = subject.plan
    if subject.meshes or plan.elastic is not None:
        return ""
    sequences, rest = divmod(wanted, tokens_per_micro_step(plan) // plan.data.micro_batch)
    if rest or not sequences:
        return ""
    return f"set `micro_batch` to {choices(divisors(sequences), near=plan.data.micro_batch, limit=3)}, or "


# A new sequence length would change the micro steps.
