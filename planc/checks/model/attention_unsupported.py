"""Attention that asks for more than planc computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.checks.support.rule import Rule, Subject
from planc.checks.tensor_parallel.sequence_indivisible import divides_sequence
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import as_patterns, families, quoted
from planc.plan.spec import AttentionKernel

CODE = Code("P708", "attention-unsupported", "the model's attention asks for what planc does not compute")

_MEANINGS: Mapping[str, str] = {
    "attention_mask": "a mask that it makes itself",
    "bidirectional": "tokens that see later ones",
    "chunked_attention": "attention in chunks",
    "s_aux": "learned attention sinks",
    "softcap": "capped attention scores",
}
_IN_NO_WAY = frozenset(("bidirectional",))
"""What the model's own code does, and no causal language model should."""


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the model for each thing that attention modules ask for beyond causal attention."""
    is_eager = subject.plan.model.attention is AttentionKernel.EAGER
    for extra, fqns in _extras(subject).items():
        if is_eager and extra not in _IN_NO_WAY:
            continue
        asks = f"asks for `{extra}`" if extra else "computes attention in code of its own"
        meaning = f", {_MEANINGS[extra]}" if extra in _MEANINGS else ""
        yield CODE.at(
            subject.plan.span("model.hf"),
            f"{quoted(as_patterns(families(subject.inventory, fqns)))} {asks}{meaning}",
            notes=(
                "planc's attention is causal over the whole sequence, or over a window, and nothing else",
            ),
            help=_help(subject, extra),
        )


def _extras(subject: Subject) -> Mapping[str, list[str]]:
    """Attention modules by what they ask for; those that ask nobody stand under no name."""
    found: dict[str, list[str]] = {}
    for attention in subject.inventory.attentions:
        for extra in attention.extras:
            found.setdefault(extra, []).append(attention.fqn)
    if subject.inventory.own_attentions:
        found[""] = list(subject.inventory.own_attentions)
    return found


def _help(subject: Subject, extra: str) -> str:
    if extra in _IN_NO_WAY:
        return "take a model without it"
    eager = "write `attention = eager` in the model block: the model's own code, with every score in memory"
    if subject.plan.mesh.cp > 1 or any(divides_sequence(one.use) for one in subject.bound.styles.values()):
        return f"{eager}; it takes no part of a sequence, so leave the sequence whole"
    return eager


RULE = Rule((CODE,), check)
