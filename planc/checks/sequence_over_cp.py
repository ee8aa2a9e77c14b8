"""Sequences over context parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.legal_values import choices, multiples_around
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.spec import LoadBalancer
from planc.vocab import MeshDim

CODE = Code("P601", "sequence-over-cp", "the sequence is not divisible over cp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `data.sequence_length`: headtail cuts it into 2 x cp chunks, none into cp."""
    spec, length, cp = subject.plan.context_parallel, subject.plan.data.sequence_length, subject.plan.mesh.cp
    if spec is None:
        return
    headtail = spec.load_balancer is LoadBalancer.HEADTAIL
    chunks = 2 * cp if headtail else cp
    if length % chunks == 0:
        return
    near = multiples_around(length, of=chunks)
    without = ", or write `load_balancer = none`" if headtail and length % cp == 0 else ""
    yield CODE.at(
        subject.plan.span("data.sequence_length"),
        f"{length} tokens in {chunks} chunks",
        secondary=(Label(spec.span, f"{spec.load_balancer} over cp = {cp} needs {chunks} equal chunks"),),
        help=f"sequence_length can be {choices(near, near=length)}{without}",
    )


RULE = Rule((CODE,), check, over=MeshDim.CP)
