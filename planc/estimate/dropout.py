"""The bytes that dropout adds to the tensors that autograd saves.

dropout of hidden states      1 byte an element: its mask
dropout of attention weights  the element too where softmax computes in the compute dtype: softmax and the
                              product with the values no longer keep the same tensor
"""

from __future__ import annotations

from math import prod

from planc.estimate.rank_work import RankWork
from planc.graph.ops import Draw
from planc.vocab import DropoutDim, DType, Shard, outwards


def dropout_bytes(work: RankWork, fqn: str) -> int:
    """Bytes that the dropouts of a module keep for backward, on one rank."""
    return sum(_bytes(work, fqn, draw) for draw in work.draws.get(fqn, ()))


def _bytes(work: RankWork, fqn: str, draw: Draw) -> int:
    num_elements = prod(_length(work, dim) for dim in draw.dims)
    if isinstance(draw.layout, Shard):
        num_elements = -(-num_elements // work.tp)
    is_of_weights = draw.dims.count(DropoutDim.SEQUENCE) > 1
    kept_twice = is_of_weights and _is_softmax_narrow(work, fqn)
    return num_elements * (1 + work.compute_dtype.size_bytes * kept_twice)


def _is_softmax_narrow(work: RankWork, fqn: str) -> bool:
    """Whether an attention's softmax computes in the compute dtype; that of most is in float32."""
    around = (work.cores[one].code for one in outwards(fqn) if one in work.cores)
    code = next(around, None)
    narrow, wide = code.by_pair if code is not None else (0, 0)
    return work.compute_dtype is DType.FLOAT32 or narrow < wide


def _length(work: RankWork, dim: DropoutDim | int) -> int:
    match dim:
        case DropoutDim.BATCH:
            return work.num_samples
        case DropoutDim.SEQUENCE:
            return work.sequence_length // work.cp
        case DropoutDim.TOKENS:
            return work.num_tokens
        case _:
            return dim
