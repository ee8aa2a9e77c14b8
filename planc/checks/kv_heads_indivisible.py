"""Key and value heads over tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label

CODE = Code("P402", "kv-heads-indivisible", "key/value heads are not divisible by tp")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at `mesh.tp` when some attention module's KV heads cannot be divided."""
    tp = subject.plan.mesh.tp
    for attention in subject.inventory.attentions:
        divided = [
            style
            for fqn, style in subject.bound.styles.items()
            if fqn.startswith(f"{attention.fqn}.") and style.style.parameters
        ]
        if not divided or attention.num_kv_heads % tp == 0:
            continue
        sizes = [str(size) for size in range(1, attention.num_kv_heads + 1) if attention.num_kv_heads % size == 0]
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            f"num_key_value_heads = {attention.num_kv_heads} over tp = {tp}",
            secondary=(Label(divided[0].span, f"`{divided[0].fqn}` is divided here"),),
            notes=(f"first at `{attention.fqn}`; every rank needs whole heads",),
            help=f"tp can be {', '.join(sizes)}",
        )
        return


RULE = Rule((CODE,), check)
