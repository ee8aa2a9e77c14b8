"""All-gather attention: every rank holds all keys and values of a layer while it computes it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from planc.runtime.torch import private
from planc.runtime.torch.attention.blocks import lower_right_attention
from planc.runtime.torch.attention.documents import Documents, apart
from planc.runtime.torch.attention.sharding import Balance, all_with_gradients, local_halves, unshard
from planc.runtime.torch.attention.windows import Windows, window_attention


def allgather_attention(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    group: ProcessGroup,
    balance: Balance,
    windows: Windows,
    window: int | None = None,
    documents: Documents | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention over the sequence sharded on `group`, as [B, H, S_local, D].

    `query` is [B, H, S_local, D], `key` and `value` [B, Hkv, S_local, D]. With `documents`, tokens attend
    within their own only; with a `window` a position sees itself and the window - 1 before it; `sinks` [H]
    score one more key, whose value is 0, and `softcap` caps the scores of the others. ValueError if a
    headtail shard is odd or if key and value differ in shape.
    """
    if key.shape != value.shape:
        raise ValueError(f"key {tuple(key.shape)} and value {tuple(value.shape)} must have one shape")
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    query, key, value = all_with_gradients(query, key, value)
    full_key, full_value = gather_sequence(torch.stack((key, value)), group=group, balance=balance).unbind(0)
    chunks = query_chunks(query, size=size, rank=rank, balance=balance)
    outs = [
        attend_to_end(
            chunk,
            key=full_key[:, :, :end],
            value=full_value[:, :, :end],
            scale=scale,
            windows=windows,
            window=window,
            documents=documents,
            sinks=sinks,
            softcap=softcap,
        )
        for chunk, end in chunks
    ]
    return torch.cat(outs, 2)


def gather_sequence(tensor: Tensor, *, group: ProcessGroup, balance: Balance) -> Tensor:
    """[2, B, Hkv, S, D] in sequence order, from every rank's [2, B, Hkv, S_local, D]; differentiable."""
    size = dist.get_world_size(group)
    gathered = private.wait_tensor(private.all_gather_autograd(tensor.contiguous(), 0, group))
    return unshard(gathered.chunk(size, 0), tensor_dim=3, balance=balance)


def query_chunks(query: Tensor, *, size: int, rank: int, balance: Balance) -> tuple[tuple[Tensor, int], ...]:
    """Each run of consecutive local queries, with the position after its last one."""
    length = query.shape[2]
    if balance == "none":
        return ((query, (rank + 1) * length),)
    head, tail = local_halves(query, tensor_dim=2)
    return (head, (rank + 1) * length // 2), (tail, (2 * size - rank) * length // 2)


def attend_to_end(
    query: Tensor,
    *,
    key: Tensor,
    value: Tensor,
    scale: float,
    windows: Windows,
    window: int | None = None,
    documents: Documents | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention with the last query at the last key, [B, H, Sq, D]."""
    options: dict[str, Any] = {"scale": scale, "sinks": sinks, "softcap": softcap}
    bias = None
    if documents is not None and not torch.compiler.is_compiling():
        attend = partial(attend_to_end, windows=Windows(), window=window, **options)
        return apart(query, key=key, value=value, documents=documents, attend=attend)
    if documents is not None:
        keys = torch.arange(key.shape[2], device=query.device)
        queries = keys[len(keys) - query.shape[2] :]
        bias = documents.bias(queries=queries, keys=keys, dtype=query.dtype, window=window)
    elif window is not None:
        return window_attention(query, key=key, value=value, window=window, windows=windows, **options)
    return lower_right_attention(query, key=key, value=value, bias=bias, **options)
