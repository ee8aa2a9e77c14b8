"""Sequences over tensor parallelism."""

from __future__ import annotations

from math import lcm

from planc.checks.support import sharded_sizes
from planc.checks.support.legal_values import choices, multiples_around
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.spec import LoadBalancer, Plan
from planc.vocab import MeshDim

CODE = Code("P409", "sequence-indivisible", "the sequence is not divisible by tp")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding at `data.sequence_length` when sequence parallelism would leave unequal shards.

    A rank of context parallelism holds `sequence_length / cp` tokens, which tp shards further.
    """
    if sizes := sharded_sizes.misfits(subject, first=sharded_sizes.SizeKind.TOKENS):
        legal = sharded_sizes.legal_sizes(subject)
        other = f", or `tp` to {legal}" if legal else ""
        yield CODE.at(
            subject.plan.span("data.sequence_length"),
            sharded_sizes.listed(sizes, tp=subject.plan.mesh.tp),
            secondary=sharded_sizes.labels(sizes),
            notes=("ranks with unequal shards would abort in the first all-gather",),
            help=f"set `sequence_length` to {lengths_for(subject)}{other}",
        )


def lengths_for(subject: Subject) -> str:
    """`32_768 or 32_776`: lengths that tp and cp divide; of these, the ones that suit `tokens_per_step`."""
    plan, length = subject.plan, subject.plan.data.sequence_length
    cp = plan.mesh.cp if plan.context_parallel else 1
    tp = plan.mesh.tp if sharded_sizes.sharding_rule(subject) else 1
    near = multiples_around(length, of=lcm(num_chunks(plan), cp * tp))
    tokens, rows = plan.train.tokens_per_step, plan.data.micro_batch * plan.mesh.dp_size
    suiting = tuple(one for one in near if tokens is not None and tokens % (one * rows) == 0)
    return choices(suiting or near, near=length)


def num_chunks(plan: Plan) -> int:
    """Equal parts that context parallelism cuts a sequence into."""
    if plan.context_parallel is None:
        return 1
    return plan.mesh.cp * (2 if plan.context_parallel.load_balancer is LoadBalancer.HEADTAIL else 1)
