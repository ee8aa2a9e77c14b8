"""Vocabularies with fewer rows than ranks."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.remedies import changed
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.bind import Assignment
from planc.styles.replicate import REPLICATE
from planc.vocab import MeshDim, Shard

CODE = Code("P404", "vocabulary-below-tp", "the vocabulary has fewer rows than tp has ranks")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `mesh.tp` when a table divided by vocabulary rows leaves a rank without any."""
    inventory, tp = subject.inventory, subject.plan.mesh.tp
    divided: list[Assignment] = []
    for fqn, assignment in subject.bound.styles.items():
        module = inventory.get(fqn)
        weight = next((p for p in module.parameters if p.name == "weight"), None) if module else None
        by_rows = assignment.placement("weight") == Shard(0)
        if weight and by_rows and weight.shape[0] == inventory.vocab_size and inventory.vocab_size < tp:
            divided.append(assignment)
    if divided:
        fqns = [assignment.fqn for assignment in divided]
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            f"vocab_size = {inventory.vocab_size} over tp = {tp}",
            secondary=tuple(Label(one.span, f"`{one.fqn}` is divided by rows here") for one in divided),
            help=f"tp can be at most {inventory.vocab_size}, or {changed(subject, fqns, REPLICATE.name)}",
        )


RULE = Rule((CODE,), check, over=MeshDim.TP)
