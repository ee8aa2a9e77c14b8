"""Attention heads over tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.checks.support.sharded_sizes import SizeKind, labels, legal_sizes, listed, misfits
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim

CODE = Code("P401", "heads-indivisible", "attention heads are not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `mesh.tp` for the heads, and for every other size that tp does not divide."""
    if sizes := misfits(subject, first=SizeKind.HEADS):
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            listed(sizes, tp=subject.plan.mesh.tp),
            secondary=labels(sizes),
            notes=("every rank needs whole heads",),
            help=f"set `tp` to {legal_sizes(subject) or '1'}",
        )


RULE = Rule((CODE,), check, over=MeshDim.TP)
