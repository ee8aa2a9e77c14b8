"""The memory that an attention kernel holds while it runs, apart from what it is given and returns.

The table of kernels is planc/devices/attention_kernels.py; a flash kernel holds nothing that counts.

    memory-efficient   for grouped heads: keys and values, and in backward their gradients, for every query
                       head
    math               scores of the queries and keys that it takes, in float32 at least, four times: scores,
                       weights and the gradients of both
"""

from __future__ import annotations

from planc.devices.attention_kernels import AttentionCall, Kernel, kernel_of
from planc.estimate.rank_work import RankWork
from planc.inventory.schema import Attention
from planc.vocab import DType

_SCORES = 4


def kernel_bytes_in_backward(work: RankWork, attention: Attention) -> int:
    """The most that backward of one attention holds in this way."""
    value_dim = attention.value_dim or attention.head_dim
    is_masked = attention.window is not None and attention.window < work.sequence_length
    call = AttentionCall(
        work.compute_dtype, attention.head_dim, value_dim, is_masked or work.attention.isolates
    )
    kernel = kernel_of(call, device=work.graph.init_mesh.device)
    if work.attention.kind == "eager" or kernel is Kernel.FLASH:
        return 0
    num_heads, num_kv_heads = work.heads(attention)
    if kernel is Kernel.MATH:
        size = 8 if work.compute_dtype is DType.FLOAT64 else 4
        keys = work.sequence_length if work.attention.kind != "ring" else work.sequence_length // work.cp
        return _SCORES * num_heads * work.num_tokens * keys * size
    if num_heads == num_kv_heads:
        return 0
    copies = work.cp if work.attention.kind == "allgather" else 1
    features = num_heads * (attention.head_dim + value_dim)
    return 2 * copies * work.num_tokens * features * work.compute_dtype.size_bytes
