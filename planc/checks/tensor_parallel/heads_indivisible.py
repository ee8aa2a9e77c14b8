"""Attention heads over tensor parallelism."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.sharded_sizes import SizeKind, labels, legal_sizes, listed, misfits
from planc.diagnostics import Code
from planc.vocab import MeshDim

CODE = Code("P401", "heads-indivisible", "attention heads are not divisible by tp")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding at `mesh.tp` for the heads, and for every other size that tp does not divide."""
    if sizes := misfits(subject, first=SizeKind.HEADS):
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            listed(sizes, tp=subject.plan.mesh.tp),
            secondary=labels(sizes),
            notes=("every rank needs whole heads",),
            help=f"set `tp` to {legal_sizes(subject) or '1'}",
        )
