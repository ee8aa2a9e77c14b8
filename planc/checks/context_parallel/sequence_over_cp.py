"""Sequences over context parallelism."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.tensor_parallel.sequence_indivisible import lengths_for, num_chunks
from planc.diagnostics import Code, Label
from planc.vocab import MeshDim

CODE = Code("P601", "sequence-over-cp", "the sequence is not divisible by cp")


@reports(CODE, over=MeshDim.CP)
def check(subject: Subject) -> Findings:
    """One finding at `data.sequence_length`: headtail cuts it into 2 x cp chunks, none into cp."""
    spec, length, cp = subject.plan.context_parallel, subject.plan.data.sequence_length, subject.plan.mesh.cp
    if spec is None:
        return
    chunks = num_chunks(subject.plan)
    if length % chunks == 0:
        return
    without = ", or write `load_balancer = none`" if chunks > cp and length % cp == 0 else ""
    yield CODE.at(
        subject.plan.span("data.sequence_length"),
        f"{length} tokens in {chunks} chunks",
        secondary=(Label(spec.span, f"{spec.load_balancer} over cp = {cp} needs {chunks} equal chunks"),),
        help=f"set `sequence_length` to {lengths_for(subject)}{without}",
    )
