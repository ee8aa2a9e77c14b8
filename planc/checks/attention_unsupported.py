"""Attention that asks for more than planc computes."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.families import as_patterns, families, quoted
from planc.checks.model import Rule, Subject
from planc.diagnostics import Code, Diagnostic

CODE = Code("P708", "attention-unsupported", "the model's attention asks for what planc does not compute")

_MEANINGS = {
    "bidirectional": "tokens that see later ones",
    "dropout": "dropout of attention weights",
    "s_aux": "learned attention sinks",
    "softcap": "capped attention scores",
}


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One finding at the model for each thing that attention modules ask for beyond causal attention."""
    found: dict[str, list[str]] = {}
    for attention in subject.inventory.attentions:
        for extra in attention.extras:
            found.setdefault(extra, []).append(attention.fqn)
    for extra, fqns in found.items():
        meaning = f", {_MEANINGS[extra]}" if extra in _MEANINGS else ""
        help = "take a model without it"
        if extra == "dropout":
            help = "set attention_dropout to 0.0 in config.json"
        yield CODE.at(
            subject.plan.span("model.hf"),
            f"{quoted(as_patterns(families(subject.inventory, fqns)))} asks for `{extra}`{meaning}",
            notes=(
                "planc's attention is causal over the whole sequence, or over a window, and nothing else",
            ),
            help=help,
        )


RULE = Rule((CODE,), check)
