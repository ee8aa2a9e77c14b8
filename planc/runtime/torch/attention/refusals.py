"""Checks of attention calls: anything unsupported that would change the result raises."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

IGNORED_KEYWORDS = frozenset(
    {
        "cache_position",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Model keywords that transformers passes through to attention; they take effect elsewhere."""

NEUTRAL_VALUES: Mapping[str, object] = {"output_attentions": False}
"""Keywords that have no effect at this value, and would have one at any other."""


def require_supported(
    *,
    module: object,
    attention_mask: Tensor | None,
    dropout: float,
    keywords: Mapping[str, object],
    is_causal: bool = True,
) -> None:
    """ValueError naming the first argument that attention without a mask of its own does not support.

    `keywords` are what the model passed beyond the interface, except sliding_window. None has no effect.
    """
    if attention_mask is not None:
        raise ValueError("attention_mask is not supported: attention is over the whole sequence")
    if dropout != 0.0:
        raise ValueError(f"dropout = {dropout} is not supported: set the model's attention_dropout to 0")
    own = getattr(module, "is_causal", True) and keywords.get("is_causal") is not False
    if bool(own) is not is_causal:
        raise ValueError(f"is_causal = {own} on {type(module).__name__} is not supported")
    for name, value in keywords.items():
        if value is None or name in (*IGNORED_KEYWORDS, "is_causal"):
            continue
        if name not in NEUTRAL_VALUES or value is not NEUTRAL_VALUES[name]:
            raise ValueError(f"{name} is not supported by this attention")


def require_shapes(
    module: object, *, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
) -> None:
    """ValueError if there are keys from a cache, or if the heads are not those of the model.

    Heads that are sharded for the queries and whole for the keys would still group, but with other keys than
    the model's: its own `num_key_value_groups`, where it has one, shows this.
    """
    if query.shape[2] != key.shape[2]:
        lengths = f"{query.shape[2]} queries, {key.shape[2]} keys"
        raise ValueError(f"{lengths}: a key-value cache is not supported")
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(f"keys {list(key.shape[:3])} and values {list(value.shape[:3])} differ in number")
    if query.shape[1] % key.shape[1]:
        raise ValueError(f"{query.shape[1]} heads are not divisible by {key.shape[1]} key-value heads")
    if sinks is not None and sinks.shape != query.shape[1:2]:
        raise ValueError(f"sinks {list(sinks.shape)} are not one for each of {query.shape[1]} heads")
    groups = getattr(module, "num_key_value_groups", None)
    if groups is not None and query.shape[1] != groups * key.shape[1]:
        raise ValueError(
            f"{query.shape[1]} query heads meet {key.shape[1]} key-value heads, but the model has {groups} "
            "query heads for each: queries, keys and values must be sharded in the same way"
        )
