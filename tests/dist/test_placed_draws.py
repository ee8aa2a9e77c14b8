"""Draws by place: any part of a tensor has the elements of the whole, and those are well distributed."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from planc.modeling.draws import Box, Distribution, Normal, TruncatedNormal, Uniform, fill, random_bits

NORMAL, UNIFORM, TRUNCATED = Normal(0.1, 0.02), Uniform(-0.5, 0.25), TruncatedNormal(0.0, 0.02, -0.04, 0.03)
STANDARD = Normal(0.0, 1.0)
NUM = 1 << 20


def whole(
    shape: tuple[int, ...], of: Distribution, *, key: int = 7, dtype: torch.dtype | None = None
) -> Tensor:
    out = torch.empty(shape, dtype=dtype)
    fill(out, tuple(slice(0, size) for size in shape), shape=shape, key=key, of=of)
    return out


def odd_boxes(shape: tuple[int, ...], *, count: int) -> Iterator[Box]:
    """Boxes with random ends, which fit no block, vector or word."""
    generator = random.Random(0)
    for _ in range(count):
        ends = [sorted(generator.sample(range(size + 1), 2)) for size in shape]
        yield tuple(slice(first, last) for first, last in ends)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("of", [NORMAL, UNIFORM, TRUNCATED], ids=["normal", "uniform", "truncated"])
@pytest.mark.parametrize(
    "shape", [(40_001,), (3, 70_001), (257, 131), (5, 33, 67), (101, 1, 4), (2, 3, 5, 7)]
)
def test_a_part_has_the_bits_of_the_whole(
    shape: tuple[int, ...], of: Distribution, dtype: torch.dtype
) -> None:
    expected = whole(shape, of, dtype=dtype)
    for box in odd_boxes(shape, count=12):
        part = torch.full_like(expected, torch.nan)
        fill(part[box], box, shape=shape, key=7, of=of)
        assert torch.equal(part[box], expected[box])
        assert part.isnan().sum() == expected.numel() - expected[box].numel()


def test_threads_change_no_bits() -> None:
    before = torch.get_num_threads()
    try:
        found = []
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            found.append(whole((1001, 333), NORMAL))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_bits_are_those_of_the_documented_formula() -> None:
    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    golden, key = 0x9E3779B97F4A7C15, 2**62 + 12345
    rows, columns = [0, 1, 5, 10**9], range(3, 12)
    expected = [
        [
            mix(mix((key + golden * (r + 1)) % 2**64) ^ mix(golden * (c // 2 + 1) % 2**64)) >> 32 * (c % 2)
            & 0xFFFFFFFF
            for c in columns
        ]
        for r in rows
    ]
    found = random_bits(key, torch.tensor(rows), columns)
    assert [[bits % 2**32 for bits in row] for row in found.tolist()] == expected


@pytest.mark.parametrize(
    ("of", "digest"),
    [(NORMAL, "079f4b85"), (UNIFORM, "0a55f047"), (TRUNCATED, "34ea643e")],
)
def test_a_seed_keeps_its_weights_in_all_releases(of: Distribution, digest: str) -> None:
    """The digests are of values that NumPy computed by the formula."""
    values = whole((257, 131), of, key=2**63 + 7)
    assert hashlib.sha256(values.numpy().tobytes()).hexdigest()[:8] == digest


def test_normal_numbers_are_quantiles_in_float32() -> None:
    bits = random_bits(3, torch.arange(1), range(NUM))[0]
    bits[:4] = torch.tensor([0, 2**31 - 1, -(2**31), -1])
    exact = torch.erfinv((bits.double() + 0.5) / 2**31) * math.sqrt(2)
    found = STANDARD.values(bits).double()
    assert ((found - exact).abs() <= 1e-6 * exact.abs()).all()


@pytest.mark.parametrize("shape", [(1, NUM), (NUM, 1), (1024, 1024)])
def test_normal_numbers_have_the_moments_of_the_distribution(shape: tuple[int, ...]) -> None:
    """Bounds are five standard errors."""
    x = whole(shape, STANDARD, dtype=torch.float64).flatten()
    error = 5 / math.sqrt(NUM)
    assert abs(x.mean().item()) < error
    assert abs(x.square().mean().item() - 1) < error * math.sqrt(2)
    assert abs(x.pow(3).mean().item()) < error * math.sqrt(15)
    assert abs(x.pow(4).mean().item() - 3) < error * math.sqrt(96)


@pytest.mark.parametrize("shape", [(1, NUM), (NUM, 1), (1024, 1024)])
@pytest.mark.parametrize("of", [STANDARD, Uniform(0.0, 1.0), TruncatedNormal(0.0, 1.0, -2.0, 1.0)])
def test_the_largest_distance_to_the_distribution_is_that_of_a_sample(
    of: Distribution, shape: tuple[int, ...]
) -> None:
    """Kolmogorov's statistic exceeds 1.95 in one of a thousand samples; the key is fixed."""
    x = whole(shape, of, dtype=torch.float64).flatten().sort().values
    normal = (1 + torch.erf(x / math.sqrt(2))) / 2
    match of:
        case Normal():
            share = normal
        case Uniform():
            share = x
        case TruncatedNormal():
            first, last = of.mass()
            share = (normal - first) / (last - first)
    ranks = torch.arange(NUM, dtype=torch.float64) / NUM
    assert (share - ranks).abs().max().item() * math.sqrt(NUM) < 1.95


def test_tails_have_their_share() -> None:
    x = whole((1024, 4096), STANDARD).abs()
    for bound in (2.0, 3.0, 4.0):
        expected = math.erfc(bound / math.sqrt(2)) * x.numel()
        assert abs((x > bound).sum().item() - expected) < 5 * math.sqrt(expected)


def test_truncated_numbers_stay_within_their_bounds_and_reach_them() -> None:
    x = whole((1024, 1024), TRUNCATED)
    assert -0.04 <= x.double().min().item() + 1e-9 < -0.0399
    assert 0.0299 < x.max().item() <= float(np.float32(0.03))


def correlation(x: Tensor, y: Tensor) -> float:
    return torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1].item()


def test_neighbors_are_independent() -> None:
    x = whole((1024, 1024), STANDARD, dtype=torch.float64)
    error = 5 / 1000
    for lag in (1, 2, 3, 64, 512):
        assert abs(correlation(x[:, lag:], x[:, :-lag])) < error
        assert abs(correlation(x[lag:], x[:-lag])) < error
        assert abs(correlation(x[lag:, lag:], x[:-lag, :-lag])) < error
        assert abs(correlation(x[:, lag:].abs(), x[:, :-lag].abs())) < error
    # Rectangles: the hash of a place begins with an exclusive or of its row and its column.
    products = x[::2, ::2] * x[1::2, ::2] * x[::2, 1::2] * x[1::2, 1::2]
    assert abs(products.mean().item()) < 5 / 512


def test_spectral_norms_are_those_of_independent_numbers() -> None:
    """A matrix of n x n independent numbers has one near 2 sqrt(n); what repeats has a larger one."""
    x = whole((1024, 1024), STANDARD)
    assert torch.linalg.matrix_norm(x, 2).item() == pytest.approx(64, rel=0.02)


@pytest.mark.parametrize("other", [8, 7 + 2**32, 7 + 0x1E3779B97F4A7C15])
def test_other_keys_give_other_numbers(other: int) -> None:
    x, y = (whole((1024, 1024), STANDARD, key=key, dtype=torch.float64) for key in (7, other))
    assert abs(correlation(x, y)) < 5 / 1000
    assert (x == y).sum().item() < 100
