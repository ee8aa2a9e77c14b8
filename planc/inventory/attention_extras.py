"""Attention features of a model beyond causal softmax attention. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_INDIFFERENT = frozenset(
    (
        "cache_position",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "scaling",
        "sliding_window",
        "use_cache",
    )
)
"""Options of an attention call that take effect elsewhere, or that every attention supports."""

_PLAIN: Mapping[str, object] = {"dropout": 0.0, "is_causal": True, "output_attentions": False}
"""Options that have no effect at these values."""


def attention_extras(module: object, options: Mapping[str, object]) -> tuple[str, ...]:
    """`softcap`, `s_aux`, ...: the features that a call in eval mode, and the module itself, require."""
    return tuple(dict.fromkeys(_extras(module, options)))


def _extras(module: object, options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        is_plain = name in _PLAIN and type(value) is type(_PLAIN[name]) and value == _PLAIN[name]
        if value is not None and name not in _INDIFFERENT and not is_plain:
            yield name
    if not getattr(module, "is_causal", True):
        yield "bidirectional"
