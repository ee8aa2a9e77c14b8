"""The kernels of attention under a plan, and the memory that they hold while they run.

Apart from what a kernel is given and returns. The table of kernels is planc/devices/attention_kernels.py; a
flash kernel holds nothing that counts.

    memory-efficient   for grouped heads: keys and values, and in backward their gradients, for every query
                       head
    math               scores of the queries that it takes at a time, in float32 at least: weights and their
                       gradients, and the slope of a soft cap
    masks              of windows, which layers share; those of compiled layers are in attention_calls.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.devices.attention_kernels import MATH_ROWS, AttentionCall, AttentionUse, Kernel, refusals
from planc.estimate.activations import core_bytes
from planc.estimate.attention_calls import (
    call_of,
    compiled_pair_bytes,
    head_shares,
    hides,
    kernel_in,
    wide_size,
    window_rows_of,
)
from planc.estimate.rank_work import RankWork
from planc.inventory.schema import Attention
from planc.vocab import SOFTCAP


def attention_uses(work: RankWork, *, in_flight: int) -> tuple[AttentionUse, ...]:
    """The attentions of a rank by how they are computed, in the order of layers.

    `in_flight` micro batches are between their forward and their backward.
    """
    if work.attention.kind == "eager":
        return tuple(_own_code(work, in_flight))
    groups: dict[tuple[AttentionCall, int | None], list[Attention]] = {}
    for attention in work.inventory.attentions:
        window = attention.window if hides(work, attention.window) else None
        groups.setdefault((call_of(work, attention), window), []).append(attention)
    return tuple(
        AttentionUse(
            modules=tuple(one.fqn for one in members),
            kernel=kernel_in(work, members[0]),
            call=call,
            reasons=refusals(call, device=work.graph.init_mesh.device),
            pair_bytes=max(_scores_bytes(work, one) for one in members)
            + in_flight * _kept_for_pairs(work, members)
            + (_window_mask_bytes(work, window, members[0]) if window else 0),
        )
        for (call, window), members in groups.items()
    )


def _kept_for_pairs(work: RankWork, attentions: list[Attention]) -> int:
    """The bytes that compiled layers keep for pairs of tokens: those computed again have theirs in turn."""
    kept, again = 0, 0
    for attention in attentions:
        num_bytes = compiled_pair_bytes(work, attention)
        if work.region(attention.fqn) is None:
            kept += num_bytes
        else:
            again = max(again, num_bytes)
    return kept + again


def _own_code(work: RankWork, in_flight: int) -> Iterator[AttentionUse]:
    """The model's own code, which keeps scores of every layer that is not recomputed, and of one that is."""
    kept, again = 0, {"": 0}
    without = replace(work, sequence_length=0)
    modules: list[str] = []
    for core in work.cores.values():
        num_bytes = core_bytes(work, core) - core_bytes(without, core)
        region = work.region(core.module.fqn)
        if region is None:
            kept += num_bytes
        else:
            again[region] = again.get(region, 0) + num_bytes
        if core.attention is not None or (num_bytes and not core.has_kernel):
            modules.append(core.module.fqn)
    if modules:
        yield AttentionUse(tuple(modules), None, None, (), in_flight * kept + max(again.values()))


def kernel_bytes_in_backward(work: RankWork, attention: Attention) -> int:
    """The most that backward of one attention holds in this way, masks apart."""
    kernel = kernel_in(work, attention)
    num_heads, num_kv_heads = work.heads(attention)
    if work.attention.kind == "eager" or kernel is Kernel.FLASH:
        return 0
    if kernel is Kernel.MATH:
        return _scores_bytes(work, attention) + _wide_bytes(work, attention)
    if num_heads == num_kv_heads:
        return 0
    copies = work.cp if work.attention.kind == "allgather" else 1
    features = num_heads * (attention.head_dim + (attention.value_dim or attention.head_dim))
    return 2 * copies * work.num_tokens * features * work.compute_dtype.size_bytes


def window_mask_bytes(work: RankWork) -> int:
    """The masks of sliding windows, one for all layers with the same window."""
    hiding = (attention for attention in work.inventory.attentions if hides(work, attention.window))
    by_window = {one.window: one for one in sorted(hiding, key=lambda one: one.fqn not in work.fused)}
    return sum(_window_mask_bytes(work, window, last) for window, last in by_window.items() if window)


def _window_mask_bytes(work: RankWork, window: int, attention: Attention) -> int:
    """The mask of one window, [queries, keys]: for all queries of a rank, the keys that are cut for them.

    Of many queries it is that of the rows that a kernel takes at a time. Each compiled layer has its own.
    """
    if attention.fqn in work.fused and work.attention.kind != "ring":
        return 0
    length, cp = work.sequence_length, work.cp
    is_divided = work.attention.kind == "allgather"
    if (rows := window_rows_of(work, window, attention)) is not None:
        pairs = rows * (rows + window - 1)
    elif is_divided and work.attention.balance == "headtail":
        pairs = (length // (2 * cp)) ** 2 * (2 * cp + 1)
    else:
        pairs = length * length // (cp if is_divided else 1)
    return pairs * work.compute_dtype.size_bytes


def _scores_bytes(work: RankWork, attention: Attention) -> int:
    if kernel_in(work, attention) is not Kernel.MATH:
        return 0
    num_heads, _ = work.heads(attention)
    has_softcap = SOFTCAP in attention.extras
    rows = min(MATH_ROWS, work.sequence_length)
    pairs = num_heads // head_shares(work) * work.num_samples * rows * _num_keys(work, attention)
    # Compiled code has kept the scores, and fuses all but their gradient.
    num_tensors = 1 if attention.fqn in work.fused else 2 + has_softcap
    return num_tensors * pairs * wide_size(work)


def _wide_bytes(work: RankWork, attention: Attention) -> int:
    """Keys and values as `math` takes them, and their gradients, in a wider dtype than the model's."""
    if wide_size(work) == work.compute_dtype.size_bytes:
        return 0
    num_kv_heads = max(1, work.heads(attention)[1] // head_shares(work))
    features = num_kv_heads * (attention.head_dim + (attention.value_dim or attention.head_dim))
    return 2 * work.num_samples * _num_keys(work, attention) * features * wide_size(work)


def _num_keys(work: RankWork, attention: Attention) -> int:
    """The most keys that `math` takes at once."""
    keys = work.sequence_length // (work.cp if work.attention.kind == "ring" else 1)
    window = attention.window
    return keys if window is None else min(keys, MATH_ROWS + window - 1)
