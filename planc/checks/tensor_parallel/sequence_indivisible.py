"""Sequences over tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from planc.checks.support.legal_values import choices, multiples_around
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.layouts.types import SEQUENCE, normal
from planc.plan.bind import Assignment
from planc.plan.spec import LoadBalancer, Plan
from planc.styles import StyleUse
from planc.vocab import MeshDim

CODE = Code("P409", "sequence-indivisible", "the sequence is not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `data.sequence_length` when sequence parallelism would leave unequal shards.

    A rank of context parallelism holds `sequence_length / cp` tokens, which tp divides further.
    """
    mesh, length = subject.plan.mesh, subject.plan.data.sequence_length
    dividing = _dividing(subject)
    cp = mesh.cp if subject.plan.context_parallel else 1
    if dividing is None or length % cp or (length // cp) % mesh.tp == 0:
        return
    shared = f" / cp = {cp}" if cp > 1 else ""
    yield CODE.at(
        subject.plan.span("data.sequence_length"),
        f"{length}{shared} over tp = {mesh.tp}",
        secondary=(Label(dividing.span, "the sequence is divided here: Shard(1)"),),
        notes=("ranks with unequal shards would abort in the first all-gather",),
        help=f"sequence_length can be {lengths_for(subject)}",
    )


def lengths_for(subject: Subject) -> str:
    """`32_768 or 32_776`: lengths that tp and cp divide; those alone that suit the tokens of a step too."""
    plan, length = subject.plan, subject.plan.data.sequence_length
    cp = plan.mesh.cp if plan.context_parallel else 1
    tp = plan.mesh.tp if _dividing(subject) else 1
    near = multiples_around(length, of=lcm(num_chunks(plan), cp * tp))
    tokens, rows = plan.train.tokens_per_step, plan.data.micro_batch * plan.mesh.dp_size
    suiting = tuple(one for one in near if tokens is not None and tokens % (one * rows) == 0)
    return choices(suiting or near, near=length)


def num_chunks(plan: Plan) -> int:
    """Equal parts that context parallelism cuts a sequence into."""
    if plan.context_parallel is None:
        return 1
    return plan.mesh.cp * (2 if plan.context_parallel.load_balancer is LoadBalancer.HEADTAIL else 1)


def divides_sequence(use: StyleUse) -> bool:
    """Whether a module takes, computes on or gives a part of the tokens."""
    return SEQUENCE in (normal(use.input), normal(use.computes_on), normal(use.output))


def _dividing(subject: Subject) -> Assignment | None:
    return next((one for one in subject.bound.styles.values() if divides_sequence(one.use)), None)


RULE = Rule((CODE,), check, over=MeshDim.TP)
