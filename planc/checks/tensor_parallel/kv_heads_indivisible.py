"""Key and value heads over tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.attention_heads import divided_attentions, sizes_for
from planc.checks.support.remedies import gathered
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.vocab import MeshDim

CODE = Code("P402", "kv-heads-indivisible", "key/value heads are not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `mesh.tp` when some attention module's heads can be divided, but not its KV heads."""
    tp = subject.plan.mesh.tp
    for attention, style in divided_attentions(subject):
        if attention.num_heads % tp:
            return  # that finding names the sizes that suit both
        if attention.num_kv_heads % tp:
            yield CODE.at(
                subject.plan.span("mesh.tp"),
                f"num_key_value_heads = {attention.num_kv_heads} over tp = {tp}",
                secondary=(Label(style.span, f"`{style.fqn}` is divided here"),),
                notes=("every rank needs whole heads",),
                help=_help(subject),
            )
            return


def _help(subject: Subject) -> str:
    """The sizes that divide the heads; where there is none, how to divide the weights alone."""
    if (sizes := sizes_for(subject)) != "1":
        return f"tp can be {sizes}"
    attentions = [attention.fqn for attention, _ in divided_attentions(subject)]
    return f"no tp divides them: leave all heads on every rank, with {gathered(subject, attentions)}"


RULE = Rule((CODE,), check, over=MeshDim.TP)
