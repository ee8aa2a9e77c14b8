"""Sharded parameters whose size leaves unequal shards."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.checks.support.sharded_sizes import SizeKind, labels, legal_sizes, listed, misfits
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim

CODE = Code("P403", "width-indivisible", "a sharded parameter's size is not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
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


RULE = Rule((CODE,), check, over=MeshDim.TP)
