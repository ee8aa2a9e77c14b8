"""Key and value heads over tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.attention_heads import divided_attentions, num_heads
from planc.checks.support.remedies import gathered
from planc.checks.support.rule import Rule, Subject
from planc.checks.support.sharded_sizes import SizeKind, labels, legal_sizes, listed, misfits
from planc.diagnostics import Code, Diagnostic
from planc.vocab import MeshDim

CODE = Code("P402", "kv-heads-indivisible", "key/value heads are not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `mesh.tp` when tp divides the heads of attention, but not its key/value heads."""
    if sizes := misfits(subject, first=SizeKind.KV_HEADS):
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            listed(sizes, tp=subject.plan.mesh.tp),
            secondary=labels(sizes),
            notes=("every rank needs whole heads",),
            help=_help(subject),
        )


def _help(subject: Subject) -> str:
    """The sizes that divide everything; if no tp divides the heads, how to shard the weights alone."""
    if num_heads(subject) > 1:
        return f"set `tp` to {legal_sizes(subject) or '1'}"
    attentions = [attention.fqn for attention, _ in divided_attentions(subject)]
    return f"keep all heads on every rank, since no tp divides them: write {gathered(subject, attentions)}"


RULE = Rule((CODE,), check, over=MeshDim.TP)
