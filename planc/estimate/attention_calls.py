"""The calls of attention under a plan, their kernels, and the bytes that compiled layers keep of them.

Compiled code keeps what its kernels take for backward, where eager code makes that again:

    masks              of documents, or of a sliding window, of each layer
    memory-efficient   keys and values as they are repeated for grouped heads, tile by tile, and masks as
                       tiles read them
    math               scores of all tiles, in float32 at least, and wide keys and values
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.devices import attention_kernels
from planc.estimate.rank_work import RankWork
from planc.inventory.schema import Attention
from planc.vocab import SOFTCAP, DType

_ALIGNED = 16
"""The memory-efficient kernel reads rows of a mask that start at multiples of this many elements."""


def setting_of(work: RankWork) -> attention_kernels.AttentionSetting:
    """The parts that all calls share."""
    return attention_kernels.AttentionSetting(
        kind=work.attention.kind,
        dtype=work.compute_dtype,
        sequence_length=work.sequence_length,
        isolates=work.attention.isolates,
        is_compiled=work.is_compiled,
    )


def call_of(work: RankWork, attention: Attention) -> attention_kernels.AttentionCall:
    return setting_of(work).call(
        head_dim=attention.head_dim,
        value_dim=attention.value_dim,
        window=attention.window,
        has_softcap=SOFTCAP in attention.extras,
    )


def kernel_in(work: RankWork, attention: Attention) -> attention_kernels.Kernel:
    return attention_kernels.kernel_of(call_of(work, attention), device=work.graph.init_mesh.device)


def hides(work: RankWork, window: int | None) -> bool:
    """Whether the layers' attention takes a mask for a window."""
    return window is not None and window < work.sequence_length and work.attention.kind != "eager"


def window_rows_of(work: RankWork, window: int, attention: Attention) -> int | None:
    """The queries that a kernel takes at a time under a window; None if it takes all that it has."""
    num_queries, is_math = _num_queries(work), kernel_in(work, attention) is attention_kernels.Kernel.MATH
    if work.attention.kind == "ring":
        return attention_kernels.ring_rows(num_queries=num_queries, is_math=is_math)
    return attention_kernels.window_rows(window, num_queries=num_queries, is_math=is_math)


def wide_size(work: RankWork) -> int:
    """The bytes of a number in which scores are computed."""
    return 8 if work.compute_dtype is DType.FLOAT64 else 4


def head_shares(work: RankWork) -> int:
    """The ranks of cp over which heads are sharded while attention runs."""
    return work.cp if work.attention.kind == "ulysses" else 1


def compiled_pair_bytes(work: RankWork, attention: Attention) -> int:
    """The bytes for pairs of tokens that a compiled layer keeps until its backward: a mask, or scores."""
    if not _is_compiled(work, attention):
        return 0
    if kernel_in(work, attention) is not attention_kernels.Kernel.MATH:
        return _mask_bytes(work, attention)
    num_heads = work.heads(attention)[0] // head_shares(work)
    pairs = sum(rows * keys for rows, keys in _score_tiles(work, attention))
    return work.num_samples * num_heads * pairs * wide_size(work)


def compiled_kernel_bytes(work: RankWork, attention: Attention) -> int:
    """The bytes for tokens that a compiled layer keeps of a kernel in addition to an eager one."""
    if not _is_compiled(work, attention):
        return 0
    num_heads, num_kv_heads = (max(1, one // head_shares(work)) for one in work.heads(attention))
    widths = attention.head_dim + (attention.value_dim or attention.head_dim)
    num_keys, kernel = sum(_tile_keys(work, attention)), kernel_in(work, attention)
    if kernel is attention_kernels.Kernel.MATH:
        wide = num_kv_heads * (widths + attention.head_dim) * num_keys
        return work.num_samples * wide * wide_size(work)
    if kernel is attention_kernels.Kernel.EFFICIENT and num_heads != num_kv_heads:
        repeated = num_heads * num_keys - num_kv_heads * work.sequence_length
        return work.num_samples * widths * repeated * work.compute_dtype.size_bytes
    return 0


def _is_compiled(work: RankWork, attention: Attention) -> bool:
    return attention.fqn in work.fused and work.attention.kind not in ("eager", "ring")


def _mask_bytes(work: RankWork, attention: Attention) -> int:
    element, length = work.compute_dtype.size_bytes, work.sequence_length
    if setting_of(work).masks_documents:
        return head_shares(work) * work.num_tokens * length * element
    if attention.window is None or not hides(work, attention.window):
        return 0
    rows = window_rows_of(work, attention.window, attention)
    if rows is None:
        return _num_queries(work) * length * element
    own = rows * (rows + attention.window - 1)
    if kernel_in(work, attention) is attention_kernels.Kernel.EFFICIENT:
        # Of each width that tiles have a copy, with rows that begin where the kernel reads them.
        own = rows * sum(-(-width // _ALIGNED) * _ALIGNED for width in {*_tile_keys(work, attention)})
    return own * element


def _num_queries(work: RankWork) -> int:
    """The queries that a rank's kernel takes in sequence."""
    parts = work.cp * (2 if work.attention.balance == "headtail" else 1)
    return work.sequence_length // (parts if work.attention.kind in ("allgather", "ring") else 1)


def _tile_keys(work: RankWork, attention: Attention) -> Iterator[int]:
    """The keys of each tile of queries; those of the sequence where a kernel takes all queries at once."""
    window, length = attention.window, work.sequence_length
    masks = setting_of(work).masks_documents or window is None or not hides(work, window)
    rows = None if masks or window is None else window_rows_of(work, window, attention)
    if rows is None or window is None:
        yield length
        return
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        yield stop - max(0, start + 1 - window)


def _score_tiles(work: RankWork, attention: Attention) -> Iterator[tuple[int, int]]:
    """The queries and keys of each tile of scores that `math` computes."""
    length = work.sequence_length
    window = attention.window if hides(work, attention.window) else None
    is_masked = setting_of(work).masks_documents
    for start in range(0, length, attention_kernels.MATH_ROWS):
        stop = min(start + attention_kernels.MATH_ROWS, length)
        keys = length if is_masked else stop if window is None else stop - max(0, start + 1 - window)
        yield stop - start, keys
