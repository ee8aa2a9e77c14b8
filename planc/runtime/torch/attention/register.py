"""Registers attention with transformers, under a name for `config._attn_implementation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, assert_never
from uuid import uuid4

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from transformers import AttentionInterface

from planc.runtime.torch.attention.allgather import allgather_attention
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.attention.plain import (
    bidirectional_attention,
    encoder_decoder_attention,
    plain_attention,
)
from planc.runtime.torch.attention.ring import ring_attention
from planc.runtime.torch.attention.sharding import Balance
from planc.runtime.torch.attention.ulysses import ulysses_attention
from planc.runtime.torch.attention.windows import Windows

Kind = Literal["plain", "bidirectional", "encoder_decoder", "ring", "allgather", "ulysses"]


def register_attention(
    kind: Kind,
    *,
    group: ProcessGroup | None,
    balance: Balance,
    name: str,
    documents: Documents | None = None,
) -> str:
    """The name under which the attention is registered: `name` with a suffix that no other call gets.

    `group` is that of the cp mesh dim, None without one; inputs are sharded over it as `balance` says. With
    `documents`, tokens see their own document only. Modules of an encoder-decoder are causal as they say,
    which for a decoder's is to its own tokens, and not to the encoder's.
    No mask function is registered under the name, so transformers builds no mask and passes None. ValueError
    if the kind and the group or balance disagree. Calls raise ValueError for what they do not support.
    """
    compute = attention_for(kind, group=group, balance=balance, documents=documents)
    cp = 1 if group is None else dist.get_world_size(group)

    def attend(
        module: object,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        sliding_window: int | None = None,
        s_aux: Tensor | None = None,
        softcap: float | None = None,
        **keywords: object,
    ) -> tuple[Tensor, None]:
        """Attention [B, S_local, H, D], and no weights, as transformers' interface has it."""
        is_causal, given = kind != "bidirectional", compute
        if kind == "encoder_decoder":
            is_causal = bool(getattr(module, "is_causal", False))
            given = partial(compute, is_causal=is_causal)
        _require_supported(
            module=module,
            attention_mask=attention_mask,
            dropout=dropout,
            keywords=keywords,
            is_causal=is_causal,
        )
        _require_shapes(module, query=query, key=key, value=value, sinks=s_aux)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        window = effective_window(sliding_window, sequence_length=cp * query.shape[2])
        out = given(query, key=key, value=value, scale=scale, window=window, sinks=s_aux, softcap=softcap)
        return out.transpose(1, 2).contiguous(), None

    # Threads of one process may each register their own group, so a counter would race.
    unique_name = f"{name}_{uuid4().hex}"
    AttentionInterface.register(unique_name, attend)
    return unique_name


def attention_for(
    kind: Kind, *, group: ProcessGroup | None, balance: Balance, documents: Documents | None = None
) -> Callable[..., Tensor]:
    """The attention of this kind, as a function of (query, *, key, value, scale, sinks, softcap).

    ValueError as above.
    """
    windows = Windows()
    if kind == "plain" or kind == "bidirectional" or kind == "encoder_decoder":
        if group is not None or balance != "none":
            raise ValueError(f"{kind} attention takes no group and balance none, not balance {balance}")
        if kind == "plain":
            return partial(plain_attention, documents=documents, windows=windows)
        if kind == "encoder_decoder":
            return partial(encoder_decoder_attention, documents=documents, windows=windows)
        return partial(bidirectional_attention, documents=documents)
    if group is None:
        raise ValueError(f"{kind} attention needs the process group of the cp mesh dim")
    arguments: dict[str, Any] = {
        "group": group,
        "balance": balance,
        "documents": documents,
        "windows": windows,
    }
    match kind:
        case "ring":
            return partial(ring_attention, **arguments)
        case "allgather":
            return partial(allgather_attention, **arguments)
        case "ulysses":
            return partial(ulysses_attention, **arguments)
        case _:
            assert_never(kind)


def effective_window(sliding_window: int | None, *, sequence_length: int) -> int | None:
    """The window in tokens, None if it hides none of `sequence_length` positions."""
    if sliding_window is None or sliding_window >= sequence_length:
        return None
    return sliding_window


_IGNORED_KEYWORDS = frozenset(
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

_NEUTRAL_VALUES: Mapping[str, object] = {"output_attentions": False}
"""Keywords that have no effect at this value, and would have one at any other."""


def _require_supported(
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
        if value is None or name in (*_IGNORED_KEYWORDS, "is_causal"):
            continue
        if name not in _NEUTRAL_VALUES or value is not _NEUTRAL_VALUES[name]:
            raise ValueError(f"{name} is not supported by this attention")


def _require_shapes(
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
