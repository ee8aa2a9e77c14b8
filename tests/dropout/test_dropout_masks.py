"""The masks: the document's formula, shares of one device's mask, and their randomness."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from planc.graph.ops import Draw
from planc.runtime.torch.attention.sharding import Balance, local_positions
from planc.runtime.torch.dropout.masking import AttachedDraw, Masking
from planc.runtime.torch.parallel.transfers import Ranks
from planc.vocab import DropoutDim, Placement, Replicate, Shard
from tests.dropout.formula import dropped, is_dropped, key_of

BATCH, SEQUENCE, TOKENS = DropoutDim
SEED, STEP, NAME = 5, 3, "model.layers.1.mlp.dropout"
NUM_SAMPLES, LENGTH = 4, 16
SIGMAS = 5.0


def mask(
    shape: Sequence[int],
    dims: tuple[DropoutDim | int, ...],
    layout: Placement,
    *,
    samples: range = range(NUM_SAMPLES),
    tp: tuple[int, int] = (1, 0),
    cp: tuple[int, int, Balance] = (1, 0, "none"),
    probability: float = 0.3,
) -> Tensor:
    """What planc drops of a tensor of ones on one rank: (size, rank) of tp and cp."""
    positions = local_positions(LENGTH, parts=cp[0], index=cp[1], balance=cp[2])
    masking = Masking(positions, LENGTH)
    draw = AttachedDraw(Draw(probability, dims, layout), masking, Ranks("", *tp), (SEED, NAME, 0))
    masking.draws.append(draw)
    masking.begin(step=STEP, samples=samples)
    return draw(torch.ones(tuple(shape))) == 0


def documented(shape: tuple[int, ...], probability: float = 0.3) -> Tensor:
    """The document's mask of [samples, ...]."""
    return torch.from_numpy(dropped(key_of(SEED, STEP, NAME, 0), shape, probability))


def test_numbers_of_any_size_and_arrays_give_one_mask() -> None:
    key = key_of(SEED, STEP, NAME, 1)
    whole = dropped(key, (3, 2, 5, 7), 0.37)
    for sample, first, second, column in np.ndindex(3, 2, 5, 7):
        expected = is_dropped(key, sample, first * 5 + second, column, 0.37)
        assert whole[sample, first, second, column] == expected


@pytest.mark.parametrize("probability", [1e-9, 0.1, 0.5, 0.999, 1 - 2**-40])
def test_a_mask_is_the_documents(probability: float) -> None:
    shape = (NUM_SAMPLES, LENGTH, 33)
    found = mask(shape, (BATCH, SEQUENCE, 33), Replicate(), probability=probability)
    assert torch.equal(found, documented(shape, probability))


def test_everything_is_dropped_with_probability_1() -> None:
    assert mask((NUM_SAMPLES, LENGTH, 8), (BATCH, SEQUENCE, 8), Replicate(), probability=1.0).all()


def test_what_is_kept_is_scaled() -> None:
    masking = Masking(torch.arange(LENGTH), LENGTH)
    draw = AttachedDraw(
        Draw(0.2, (BATCH, SEQUENCE, 8), Replicate()), masking, Ranks("", 1, 0), (SEED, NAME, 0)
    )
    masking.draws.append(draw)
    masking.begin(step=STEP, samples=range(NUM_SAMPLES))
    value = torch.randn(NUM_SAMPLES, LENGTH, 8, dtype=torch.float64, requires_grad=True)
    found = draw(value)
    kept = (~documented((NUM_SAMPLES, LENGTH, 8), 0.2)).double()
    torch.testing.assert_close(found, value * kept / 0.8)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert value.grad is not None
    torch.testing.assert_close(value.grad, kept / 0.8)


def test_ranks_of_tp_drop_their_shards_of_one_mask() -> None:
    hidden, weights = (NUM_SAMPLES, LENGTH, 10), (NUM_SAMPLES, 4, LENGTH, LENGTH)
    cases: tuple[tuple[tuple[int, ...], tuple[DropoutDim | int, ...], int], ...] = (
        (hidden, (BATCH, SEQUENCE, 10), 0),
        (hidden, (BATCH, SEQUENCE, 10), 1),
        # 10 features over 4 ranks: 3, 3, 3 and 1.
        (hidden, (BATCH, SEQUENCE, 10), 2),
        (weights, (BATCH, 4, SEQUENCE, SEQUENCE), 1),
    )
    for shape, dims, tensor_dim in cases:
        whole = documented(shape)
        for rank, part in enumerate(torch.tensor_split(whole, _ends(shape[tensor_dim], 4), tensor_dim)):
            assert torch.equal(mask(part.shape, dims, Shard(tensor_dim), tp=(4, rank)), part)


def _ends(length: int, parts: int) -> tuple[int, ...]:
    chunk = math.ceil(length / parts)
    return tuple(min(chunk * index, length) for index in range(1, parts))


@pytest.mark.parametrize("balance", ["none", "headtail"])
def test_ranks_of_cp_and_tp_drop_their_tokens_of_one_mask(balance: Balance) -> None:
    whole = documented((NUM_SAMPLES, LENGTH, 6))
    for rank in range(2):
        held = whole[:, local_positions(LENGTH, parts=2, index=rank, balance=balance)]
        found = mask(held.shape, (BATCH, SEQUENCE, 6), Replicate(), cp=(2, rank, balance))
        assert torch.equal(found, held)
        flat = mask((NUM_SAMPLES * LENGTH // 2, 6), (TOKENS, 6), Replicate(), cp=(2, rank, balance))
        assert torch.equal(flat, held.flatten(0, 1))
        for shard, part in enumerate(held.chunk(2, 1)):
            found = mask(part.shape, (BATCH, SEQUENCE, 6), Shard(1), tp=(2, shard), cp=(2, rank, balance))
            assert torch.equal(found, part)


def test_micro_batches_drop_their_samples_of_one_mask() -> None:
    whole = documented((6, LENGTH, 5))
    for first in range(0, 6, 2):
        part = mask((2, LENGTH, 5), (BATCH, SEQUENCE, 5), Replicate(), samples=range(first, first + 2))
        assert torch.equal(part, whole[first : first + 2])


def test_a_tensor_without_samples_has_one_mask() -> None:
    found = mask((LENGTH, 1, 5), (SEQUENCE, 1, 5), Replicate())
    assert torch.equal(found[:, 0], documented((1, LENGTH, 5))[0])


def test_a_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[4, 16, 9\], and the plan's is 0.3 of \[batch"):
        mask((NUM_SAMPLES, LENGTH, 9), (BATCH, SEQUENCE, 8), Replicate())


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_the_probability(probability: float) -> None:
    """Of all elements, of every row and column, and of rows of different draws."""
    rate = np.stack([_large(number, probability) for number in range(4)])
    for axes in (None, (0, 1, 2), (1, 2, 3), (0, 2, 3), (0, 1, 3)):
        shares = np.asarray(rate.mean(axis=axes))
        count = rate.size // shares.size
        sigma = math.sqrt(probability * (1 - probability) / count)
        # The largest of n normal values is rarely more than a few deviations beyond sqrt(2 log n).
        limit = SIGMAS + math.sqrt(2 * math.log(shares.size))
        assert np.abs(shares - probability).max() < limit * sigma


def test_masks_of_neighbors_layers_samples_and_steps_are_independent() -> None:
    """Correlations of 2 ** 20 elements: what is dropped in one place shows nothing of another."""
    one = _large(0, 0.5)
    others = {
        "columns": np.roll(one, 1, axis=2),
        "distant columns": np.roll(one, 64, axis=2),
        "rows": np.roll(one, 1, axis=1),
        "samples": np.roll(one, 1, axis=0),
        "rows and columns": np.roll(one, (1, 1), axis=(1, 2)),
        "draws": _large(1, 0.5),
        "steps": dropped(key_of(SEED, 2, NAME, 0), one.shape, 0.5),
        "layers": dropped(key_of(SEED, 1, NAME.replace("1", "2"), 0), one.shape, 0.5),
        "seeds": dropped(key_of(SEED + 1, 1, NAME, 0), one.shape, 0.5),
    }
    for name, other in others.items():
        correlation = ((one - 0.5) * (other - 0.5)).mean() / 0.25
        assert abs(correlation) < SIGMAS / math.sqrt(one.size), name


def test_runs_of_eight_columns_are_equally_frequent() -> None:
    """Chi-square of 256 patterns, along columns and along rows."""
    one = _large(2, 0.5)
    for bits in (one, one.swapaxes(1, 2)):
        patterns = np.packbits(np.ascontiguousarray(bits)).astype(np.int64)
        counts = np.bincount(patterns.ravel(), minlength=256)
        expected = patterns.size / 256
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi_square - 255) < SIGMAS * math.sqrt(2 * 255)


def _large(number: int, probability: float) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return dropped(key_of(SEED, 1, NAME, number), (16, 256, 256), probability)
