"""Sharded parameters whose size leaves unequal shards."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.sharded_sizes import SizeKind, labels, legal_sizes, listed, misfits
from planc.diagnostics import Code
from planc.vocab import MeshDim

CODE = Code("P403", "width-indivisible", "a sharded parameter's size is not divisible by tp")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding at `mesh.tp` for all sizes. Projections of indivisible heads are left to P401."""
    if sizes := misfits(subject, first=SizeKind.WIDTH):
        tp = subject.plan.mesh.tp
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            listed(sizes, tp=tp),
            secondary=labels(sizes),
            notes=(
                f"tp = {tp} would give ranks shards of different shapes, which collectives can't combine",
            ),
            help=f"set `tp` to {legal_sizes(subject) or '1'}",
        )
