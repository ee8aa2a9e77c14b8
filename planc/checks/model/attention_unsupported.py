"""Attention with features that planc does not compute."""

from __future__ import annotations

from collections.abc import Mapping

from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.sharded_sizes import divides_sequence
from planc.diagnostics import Code
from planc.plan.attention_calls import sees_later_tokens
from planc.plan.spec import AttentionKernel
from planc.vocab import SEES_LATER_TOKENS, SINKS, SOFTCAP, Task

CODE = Code("P708", "attention-unsupported", "unsupported attention feature")

_MEANINGS: Mapping[str, str] = {
    "attention_mask": "a mask of its own",
    "bidirectional": "attention to later tokens",
    "chunked_attention": "attention in chunks",
    "compressed_keys": "keys that are not those of its tokens",
    "is_causal": "attention to later tokens",
    "sliding_window": "a window to both sides",
}


_COMPUTED: Mapping[bool, tuple[str, ...]] = {False: (SINKS, SOFTCAP), True: (*SEES_LATER_TOKENS,)}
"""The features that planc's own attention has: causal, and to both sides."""
_NOTES: Mapping[bool, str] = {
    False: "planc computes causal attention over a whole sequence or a sliding window, with or "
    "without sinks and a soft cap, and nothing else",
    True: "of encoders planc computes attention of all tokens to all others, and nothing else",
}
_PADDED = (Task.SEQUENCE_CLASSIFICATION, Task.TOKEN_CLASSIFICATION, Task.EMBEDDING)
"""The tasks of encoders whose own attention would see the padding of texts (P775)."""
_WINDOW = "sliding_window"


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at the model for each feature that attention modules use beyond planc's own attention."""
    is_eager = subject.plan.model.attention is AttentionKernel.EAGER
    found = _extras(subject)
    # Nothing else matters in a model that is not causal.
    later = SEES_LATER_TOKENS.intersection(found)
    for extra, fqns in found.items():
        if extra not in later and (is_eager or later):
            continue
        meaning = f", {_MEANINGS[extra]}" if extra in _MEANINGS else ""
        what = f"`{extra}`{meaning}"
        verb, several = f"uses {what}", f"use {what}"
        if not extra:
            verb, several = ("computes attention in its own code", "compute attention in their own code")
        yield CODE.at(
            subject.plan.span("model.hf"),
            subject.clause(fqns, verb, several=several),
            notes=(_NOTES[_is_encoder(subject)],),
            help=_help(subject, extra),
        )


def _is_encoder(subject: Subject) -> bool:
    return sees_later_tokens(subject.inventory) and subject.plan.model.task.task is not Task.CAUSAL_LM


def _extras(subject: Subject) -> Mapping[str, list[str]]:
    """Attention modules by the unsupported feature they use; the empty name is for code of their own."""
    is_encoder, length = _is_encoder(subject), subject.plan.data.sequence_length
    extras: dict[str, list[str]] = {}
    for attention in subject.inventory.attentions:
        for extra in attention.extras:
            if extra not in _COMPUTED[is_encoder]:
                extras.setdefault(extra, []).append(attention.fqn)
        # Whether a window to both sides counts a token itself differs from model to model.
        if is_encoder and attention.window is not None and attention.window < length:
            extras.setdefault(_WINDOW, []).append(attention.fqn)
    if subject.inventory.own_attentions:
        extras[""] = list(subject.inventory.own_attentions)
    return extras


def _help(subject: Subject, extra: str) -> str:
    if extra in SEES_LATER_TOKENS:
        causal = "set `is_causal` to true in config.json" if extra == "is_causal" else "use a causal model"
        return f"{causal}: with any attention, every position would see its own label"
    if _is_encoder(subject) and subject.plan.model.task.task in _PADDED:
        task = subject.plan.model.task.task
        return (
            "use an encoder without it, such as BERT or RoBERTa: `attention = eager`, which computes it, is "
            f"not supported for `task = {task}`, whose texts are padded (P775)"
        )
    eager = "write `attention = eager` in `model` for the model's own code, which stores every score"
    if subject.plan.mesh.cp > 1 or any(
        divides_sequence(assignment.use) for assignment in subject.bound.styles.values()
    ):
        return f"{eager}, and keep the sequence whole: eager attention can't work on part of it"
    return eager
