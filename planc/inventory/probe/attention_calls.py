"""Arguments that a model passes to its attention, recorded in one run on the meta device. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planc.record import record

WITHOUT_MASK, WITH_MASK, OWN = "planc_probe", "planc_probe_masked", "eager"
_TO_SELF = "planc_probe_to_self"
IMPLEMENTATIONS = (WITHOUT_MASK, WITH_MASK, OWN)
"""The attentions that a probe tries: called as planc's own is; for code that requires a mask; and the model's
own, which shows nothing."""


@record
class AttentionCall:
    """One call: its heads, and the features that it requires."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    value_dim: int | None
    extras: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    others: tuple[Tensor, ...]
    """The mask, the tokens to attend to, sinks and biases."""
    number: int
    """1 for the first that a module made, and so on."""


@contextlib.contextmanager
def attention_calls() -> Iterator[dict[nn.Module, AttentionCall]]:
    """The calls of attention modules, filled while the context lasts and a model runs."""
    calls: dict[nn.Module, AttentionCall] = {}

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        # [batch, heads, tokens, head_dim]; without a mask, because only the data flow matters.
        num_heads, num_kv_heads = query.shape[1], key.shape[1]
        head_dim, value_dim = query.shape[-1], value.shape[-1]
        masked = () if attention_mask is None else ("attention_mask",)
        compressed = () if query.shape[2] == key.shape[2] else ("compressed_keys",)
        others = tuple(x for x in (attention_mask, *options.values()) if isinstance(x, Tensor))
        calls[module] = AttentionCall(
            num_heads,
            num_kv_heads,
            head_dim,
            options.get("sliding_window"),
            None if value_dim == head_dim else value_dim,
            (*attention_extras(module, options), *masked, *compressed),
            (query, key, value),
            others,
            number=1 + (calls[module].number if module in calls else 0),
        )
        groups = num_heads // num_kv_heads
        scores = query @ key.repeat_interleave(groups, dim=1).transpose(2, 3)
        weights = nn.functional.dropout(scores.softmax(dim=-1), p=options.get("dropout", 0.0))
        output = weights @ value.repeat_interleave(groups, dim=1)
        # Sinks and biases get gradients too, whatever an attention makes of them.
        for one in others:
            if one.requires_grad:
                output = output + one.sum()
        return output.transpose(1, 2).contiguous(), None

    for name in (WITHOUT_MASK, WITH_MASK):
        ALL_ATTENTION_FUNCTIONS[name] = attend
    # Masks are looked up for all names, and transformers can't unregister one: this name is unique.
    AttentionMaskInterface.register(WITH_MASK, eager_mask)
    try:
        yield calls
    finally:
        for name in (WITHOUT_MASK, WITH_MASK):
            ALL_ATTENTION_FUNCTIONS.pop(name)


@contextlib.contextmanager
def attention_to_self() -> Iterator[str]:
    """The name of an attention, while the context lasts, in which each token sees itself alone."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any
    ) -> tuple[Tensor, None]:
        groups = query.shape[1] // value.shape[1]
        return value.repeat_interleave(groups, dim=1).transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS[_TO_SELF] = attend
    try:
        yield _TO_SELF
    finally:
        ALL_ATTENTION_FUNCTIONS.pop(_TO_SELF)


def own_attentions(model: PreTrainedModel, *, calls: dict[nn.Module, AttentionCall]) -> tuple[str, ...]:
    """The outermost attention modules that never called the interface.

    None if another did: the rest may be recurrences. An encoder-decoder may have either kind.
    """
    if calls and not model.config.is_encoder_decoder:
        return ()
    found: list[str] = []
    for fqn, module in model.named_modules():
        is_inner = any(fqn.startswith(f"{outer}.") for outer in found)
        is_silent = calls.keys().isdisjoint(module.modules())
        if "Attention" in type(module).__name__ and is_silent and not is_inner:
            found.append(fqn)
    return tuple(found)


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
