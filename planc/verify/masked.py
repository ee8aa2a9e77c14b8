"""Masked sequences by their definition, token by token: a second implementation, for the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from planc.runtime.data.spec import Masking

UNLABELED = -100
_MASK, _NUM_BYTES, _TRAINING = 257, 256, 1


def masked(tokens: Sequence[int], masking: Masking, *, seed: int, place: int) -> tuple[list[int], list[int]]:
    """The inputs and labels of the bytes of the sequence at a place in the order of samples.

    Of three numbers for each token, the first chooses it, the second decides what becomes of it, and the last
    is the byte in its place.
    """
    length = len(tokens)
    numbers = np.random.PCG64(np.random.SeedSequence([seed, place, 0, _TRAINING])).random_raw(3 * length)
    inputs, labels = list(tokens), [UNLABELED] * length
    for index, token in enumerate(tokens):
        choice, fate = (int(numbers[part * length + index] >> np.uint64(11)) / 2**53 for part in (0, 1))
        if token >= _NUM_BYTES or choice >= masking.probability:
            continue
        labels[index] = token
        if fate < masking.mask_replace:
            inputs[index] = _MASK
        elif fate < masking.mask_replace + masking.random_replace:
            inputs[index] = int(numbers[2 * length + index]) % _NUM_BYTES
    return inputs, labels


def masked_batch(
    sequences: Sequence[Tensor], masking: Masking, *, seed: int, first: int
) -> tuple[Tensor, Tensor]:
    """(inputs, labels), both [sequences, length], of the sequences from place `first` on."""
    made = [
        masked(tokens.tolist(), masking, seed=seed, place=first + index)
        for index, tokens in enumerate(sequences)
    ]
    inputs, labels = (torch.tensor(rows) for rows in zip(*made, strict=True))
    return inputs, labels
