"""Bytes that linear layers keep between the backward of a micro batch and the gradients of their weights.

A layer keeps its input, once for layers that read the same one, and the gradient of its output.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planc.estimate.activations import input_bytes, input_key
from planc.estimate.rank_work import RankWork
from planc.inventory.schema import Module


def deferred_bytes(work: RankWork) -> int:
    """Return the bytes that one micro batch keeps; 0 if backward computes all gradients."""
    return sum(freed for _, freed in products(work))


def products(work: RankWork) -> Iterator[tuple[int, int]]:
    """The bytes of each layer's gradient and of what is freed with it, in the order of the computation."""
    layers = [module for module in work.inventory.modules if module.fqn in work.deferred]
    first = {key: module for module in reversed(layers) for key in [input_key(work, module)]}
    for module in reversed(layers):
        element = work.compute_dtype.size_bytes
        freed = output_bytes(work, module)
        freed += input_bytes(work, module) if first[input_key(work, module)] is module else 0
        yield element * prod(work.tp_shape(module) or (0,)), freed


def output_bytes(work: RankWork, module: Module) -> int:
    """Bytes of a linear layer's output on a rank, or of its gradient."""
    rows, *_ = work.tp_shape(module) or (0,)
    return work.num_tokens * rows * work.compute_dtype.size_bytes
