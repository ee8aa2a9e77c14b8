"""What dropout adds to the tensors that autograd saves.

dropout of hidden states      1 byte an element: its mask
dropout of attention weights  4 bytes an element more in float32: softmax and the product with the values
                              no longer keep the same tensor
"""

from __future__ import annotations

from math import prod

from planc.estimate.rank_work import RankWork
from planc.graph.ops.attach_dropout import Draw
from planc.vocab import DropoutDim, DType, Shard


def dropout_bytes(work: RankWork, fqn: str) -> int:
    """Bytes that the dropouts of a module keep for backward, on one rank."""
    return sum(_bytes(work, draw) for draw in work.draws.get(fqn, ()))


def _bytes(work: RankWork, draw: Draw) -> int:
    num_elements = prod(_length(work, dim) for dim in draw.dims)
    if isinstance(draw.layout, Shard):
        num_elements = -(-num_elements // work.tp)
    is_of_weights = draw.dims.count(DropoutDim.SEQUENCE) > 1
    kept_twice = is_of_weights and work.compute_dtype is DType.FLOAT32
    return num_elements * (5 if kept_twice else 1)


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
