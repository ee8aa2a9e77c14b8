"""The masks of dropout: a stateless hash of a key and an element's position, in integer operations.

docs/concepts/determinism.md has the formula. Keys and rows are few and get splitmix64's finalizer; the
elements get seven operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from planc.modeling.draws import GOLDEN, mix

_THIRD = 0x7FEB_352D


def row_hashes(key: Tensor, *, samples: Tensor, rows: Tensor) -> Tensor:
    """int64, broadcast from a key [], samples in the step and rows in a sample's tensor."""
    return mix(mix(key + GOLDEN * (samples + 1)) + GOLDEN * (rows + 1))


def dropped(hashes: Tensor, *, columns: Tensor, probability: float) -> Tensor:
    """bool [*hashes.shape, columns]: the elements that dropout sets to 0, for a probability below 1."""
    bits = random_bits(hashes, columns=columns)
    limit = round(probability * (1 << 32)) - (1 << 31)
    # The first integer that int32 does not have is above all of them.
    return bits < limit if limit < 1 << 31 else torch.ones_like(bits, dtype=torch.bool)


def random_bits(hashes: Tensor, *, columns: Tensor) -> Tensor:
    """int32 [*hashes.shape, columns]: the hash of each element."""
    low, odd = hashes.to(torch.int32), (hashes >> 32).to(torch.int32) | 1
    bits = mix(GOLDEN * (columns + 1)).to(torch.int32) ^ low.unsqueeze(-1)
    bits *= odd.unsqueeze(-1)
    bits ^= (bits >> 16).bitwise_and_(0xFFFF)
    bits *= _THIRD
    return bits


def drop(value: Tensor, mask: Tensor, *, probability: float) -> Tensor:
    """The value with dropped elements 0 and the others scaled, so every element's mean stays.

    Autograd keeps the mask, one byte per element.
    """
    return value.masked_fill(mask, 0.0) * (1.0 / (1.0 - probability))
