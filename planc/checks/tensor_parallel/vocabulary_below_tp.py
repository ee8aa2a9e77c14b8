"""Vocabularies with fewer rows than ranks."""

from __future__ import annotations

from planc.checks.support.remedies import changed
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.sharded_sizes import SizeKind, labels, legal_sizes, misfits, vocabulary_tables
from planc.diagnostics import Code
from planc.styles.modules import REPLICATE
from planc.vocab import MeshDim

CODE = Code("P404", "vocabulary-below-tp", "the vocabulary has fewer rows than tp has ranks")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding at `mesh.tp` when a table sharded by vocabulary rows leaves a rank without any."""
    if sizes := misfits(subject, first=SizeKind.VOCABULARY):
        fqns = [table.fqn for table in vocabulary_tables(subject)]
        texts = " and does not divide ".join(size.text for size in sizes)
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            f"tp = {subject.plan.mesh.tp} exceeds {texts}",
            secondary=labels(sizes),
            notes=("some ranks would hold no rows, and the loss over them would fail",),
            help=f"set `tp` to {legal_sizes(subject) or '1'}, or {changed(subject, fqns, REPLICATE.name)}",
        )
