"""Sequences over tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.layout_types import SEQUENCE, normal
from planc.checks.legal_values import choices, multiples_around
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.styles import StyleUse
from planc.vocab import MeshDim

CODE = Code("P409", "sequence-indivisible", "the sequence is not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `data.sequence_length` when sequence parallelism would leave unequal shards.

    A rank of context parallelism holds `sequence_length / cp` tokens, which tp divides further.
    """
    mesh, length = subject.plan.mesh, subject.plan.data.sequence_length
    dividing = next((one for one in subject.bound.styles.values() if divides_sequence(one.use)), None)
    cp = mesh.cp if subject.plan.context_parallel else 1
    if dividing is None or length % cp or (length // cp) % mesh.tp == 0:
        return
    multiple = mesh.tp * cp * (2 if cp > 1 else 1)
    shared = f" / cp = {cp}" if cp > 1 else ""
    yield CODE.at(
        subject.plan.span("data.sequence_length"),
        f"{length}{shared} over tp = {mesh.tp}",
        secondary=(Label(dividing.span, "the sequence is divided here: Shard(1)"),),
        notes=("ranks with unequal shards would abort in the first all-gather",),
        help=f"sequence_length can be {choices(multiples_around(length, of=multiple), near=length)}",
    )


def divides_sequence(use: StyleUse) -> bool:
    """Whether a module takes, computes on or gives a part of the tokens."""
    return SEQUENCE in (normal(use.input), normal(use.computes_on), normal(use.output))


RULE = Rule((CODE,), check, over=MeshDim.TP)
