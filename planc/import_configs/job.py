"""The kind of training that a file is of."""

from __future__ import annotations

from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.facts import Fact


def job_of(draft: Draft) -> str:
    """The training in one phrase: what is changed, from which weights, on what."""
    is_chat, is_pretrained = _is(draft, facts.CHAT), _is(draft, facts.PRETRAINED)
    prefers = _is(draft, facts.PAIRS)
    data = "pairs of answers" if prefers else "conversations" if is_chat else "documents"
    if _is(draft, facts.ADAPTER):
        return f"trains adapters on {data}"
    if prefers:
        return f"fine-tunes on {data}"
    if is_chat:
        what = "fine-tunes" if is_pretrained else "trains random weights"
    else:
        what = "trains published weights further" if is_pretrained else "pretrains random weights"
    is_partial = _is(draft, facts.LAST_LAYERS) or _is(draft, facts.FROZEN)
    return f"{what}, some of them, on {data}" if is_partial else f"{what} on {data}"


def _is(draft: Draft, fact: Fact) -> bool:
    given = draft.peek(fact)
    return given is not None and bool(given.value)
