"""Ulysses attention: one all-to-all exchanges sequence shards for head shards, another reverses it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from planc.runtime.torch import private
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.attention.plain import plain_attention
from planc.runtime.torch.attention.sharding import Balance, all_with_gradients, shard, unshard
from planc.runtime.torch.attention.windows import Windows


def ulysses_attention(
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
    score one more key, whose value is 0, and `softcap` caps the scores of the others. ValueError if the heads
    do not divide over the ranks (see `kv_repeats`) or a headtail shard is odd.
    """
    size = dist.get_world_size(group)
    repeats = kv_repeats(query.shape[1], num_kv_heads=key.shape[1], cp=size)
    if repeats > 1:
        key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    query, key, value = all_with_gradients(query, key, value)
    query, key, value = (to_heads(tensor, group=group, balance=balance) for tensor in (query, key, value))
    if sinks is not None:
        sinks = sinks.chunk(size)[dist.get_rank(group)]
    out = plain_attention(
        query,
        key=key,
        value=value,
        scale=scale,
        windows=windows,
        window=window,
        documents=documents,
        sinks=sinks,
        softcap=softcap,
    )
    return to_sequence(out, group=group, balance=balance)


def kv_repeats(num_heads: int, *, num_kv_heads: int, cp: int) -> int:
    """Return the repeats of each key-value head that give all `cp` ranks one; counts are per tp rank.

    ValueError unless the query heads divide by cp, and the key-value heads divide by cp or cp by them.
    """
    if num_heads % cp:
        raise ValueError(f"ulysses needs attention heads divisible by cp: {num_heads} heads, cp = {cp}")
    if num_kv_heads % cp == 0:
        return 1
    if cp % num_kv_heads:
        raise ValueError(
            f"ulysses needs key-value heads divisible by cp, or cp by them: {num_kv_heads} heads, cp = {cp}"
        )
    return cp // num_kv_heads


def to_heads(tensor: Tensor, *, group: ProcessGroup, balance: Balance) -> Tensor:
    """[B, H, S_local, D] on every rank to [B, H / cp, S, D] in sequence order; differentiable."""
    outgoing = torch.stack(tensor.chunk(dist.get_world_size(group), 1))
    return unshard(exchange(outgoing, group=group).unbind(0), tensor_dim=2, balance=balance)


def to_sequence(tensor: Tensor, *, group: ProcessGroup, balance: Balance) -> Tensor:
    """[B, H / cp, S, D] in sequence order to [B, H, S_local, D]: the inverse of `to_heads`."""
    size = dist.get_world_size(group)
    shards = [shard(tensor, tensor_dim=2, parts=size, index=index, balance=balance) for index in range(size)]
    return torch.cat(exchange(torch.stack(shards), group=group).unbind(0), 1)


def exchange(tensor: Tensor, *, group: ProcessGroup) -> Tensor:
    """[cp, ...] whose row i came from rank i, from every rank's [cp, ...] whose row i goes to rank i."""
    received: Tensor = private.wait_tensor(private.all_to_all_autograd(tensor, None, None, group))
    return received
