"""Registers attention with transformers, under a name for `config._attn_implementation`."""

from __future__ import annotations

from collections.abc import Callable
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
from planc.runtime.torch.attention.refusals import require_shapes, require_supported
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
        require_supported(
            module=module,
            attention_mask=attention_mask,
            dropout=dropout,
            keywords=keywords,
            is_causal=is_causal,
        )
        require_shapes(module, query=query, key=key, value=value, sinks=s_aux)
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
