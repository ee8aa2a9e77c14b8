"""Attention heads over tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.attention_heads import divided_attentions, sizes_for
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.vocab import MeshDim

CODE = Code("P401", "heads-indivisible", "attention heads are not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `mesh.tp` when the heads of some attention module cannot be divided."""
    tp = subject.plan.mesh.tp
    for attention, style in divided_attentions(subject):
        if attention.num_heads % tp:
            yield CODE.at(
                subject.plan.span("mesh.tp"),
                f"num_attention_heads = {attention.num_heads} over tp = {tp}",
                secondary=(Label(style.span, f"`{style.fqn}` is divided here"),),
                notes=("every rank needs whole heads",),
                help=f"tp can be {sizes_for(subject)}",
            )
            return


RULE = Rule((CODE,), check, over=MeshDim.TP)
