"""Random numbers that follow from a key and an element's place in a tensor. Any part is drawn on its own.

docs/concepts/determinism.md has the formula. After the hash there are only additions, multiplications,
divisions and square roots, which IEEE 754 rounds exactly: bits depend neither on the number of elements that
are drawn together nor on the CPU. Normal numbers are by Wichura's algorithm AS 241 (PPND7), from
"The Percentage Points of the Normal Distribution", Applied Statistics 37 (1988).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Box = tuple[slice, ...]
"""Consecutive elements along each dimension, with a start and a stop."""

_BLOCK = 1 << 15
"""Elements that are drawn at once: their intermediate values stay in the CPU's cache."""
_GOLDEN, _FIRST, _SECOND = (
    np.uint64(factor) for factor in (0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB)
)
_CENTRAL = np.float32(0.425)
_CENTRAL_SQUARE = np.float32(0.180625)
_A = (3.3871327179, 50.434271938, 159.29113202, 59.109374720)
_B = (1.0, 17.895169469, 78.757757664, 67.187563600)
_C = (1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103)
_D = (1.0, 0.73700164250, 0.12021132975)
_TAIL_SHIFT = np.float32(1.6)
_ATANH = (2.0, 2 / 3, 2 / 5, 2 / 7)
_ROOT_2 = np.float32(math.sqrt(2))


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution."""

    mean: float
    std: float

    def values(self, bits: Array) -> Array:
        """float32, from uint32 of any shape."""
        return _scaled(_standard_normal(bits), factor=self.std, offset=self.mean)


@dataclass(frozen=True, slots=True)
class Uniform:
    """A uniform distribution over [low, high)."""

    low: float
    high: float

    def values(self, bits: Array) -> Array:
        """float32, from uint32 of any shape; 24 bits of them count."""
        unit = (bits >> np.uint32(8)).astype(np.float32)
        unit *= np.float32(2.0**-24)
        return _scaled(unit, factor=self.high - self.low, offset=self.low)


@dataclass(frozen=True, slots=True)
class TruncatedNormal:
    """A normal distribution of which [low, high] is kept, at least `LEAST` of all."""

    mean: float
    std: float
    low: float
    high: float

    def mass(self) -> tuple[float, float]:
        """The shares of the whole distribution below `low` and below `high`."""
        below, above = (
            math.erf((end - self.mean) / self.std / math.sqrt(2)) for end in (self.low, self.high)
        )
        return (1 + below) / 2, (1 + above) / 2

    def values(self, bits: Array) -> Array:
        """float32, from uint32 of any shape."""
        first, last = self.mass()
        share = bits.astype(np.float64)
        share += 0.5
        share *= (last - first) * 2.0**-32
        share += first
        central = (share - 0.5).astype(np.float32)
        tail = np.minimum(share, 1 - share).astype(np.float32).reshape(-1)
        values = _scaled(_quantile(central, lambda of: tail[of]), factor=self.std, offset=self.mean)
        return np.clip(values, np.float32(self.low), np.float32(self.high), out=values)


LEAST = 0.3
"""The least share of a normal distribution that a truncated one keeps, here."""

Distribution = Normal | Uniform | TruncatedNormal


def fill(out: Tensor, box: Box, *, shape: tuple[int, ...], key: int, of: Distribution) -> None:
    """Draw the elements `box` of a tensor of this shape into `out`, rounded once to its dtype."""
    if not out.numel():
        return
    if out.dim() < 2:
        _fill_rows(out.view(1, -1), np.zeros(1, np.uint64), box[0].start if box else 0, key=key, of=of)
        return
    if out.dim() > 2 and not out.is_contiguous():
        # Such as a shard along a middle dimension: rows of its parts can't be numbered in one view.
        for index in range(len(out)):
            one = slice(box[0].start + index, box[0].start + index + 1)
            fill_one = out[index : index + 1].contiguous()
            fill(fill_one, (one, *box[1:]), shape=shape, key=key, of=of)
            out[index : index + 1].copy_(fill_one)
        return
    rows = out.reshape(-1, out.shape[-1]) if out.dim() > 2 else out
    step = max(1, _BLOCK // out.shape[-1])
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        numbers = _row_numbers(range(first, first + len(some)), box[:-1], lengths=shape[:-1])
        _fill_rows(some, numbers, box[-1].start, key=key, of=of)


def _row_numbers(local: range, box: Box, *, lengths: tuple[int, ...]) -> Array:
    """uint64: rows of a box, numbered within it, by their numbers in the whole tensor."""
    inner = tuple(one.stop - one.start for one in box)
    places = np.unravel_index(np.arange(local.start, local.stop), inner)
    whole = np.zeros(len(local), np.int64)
    for place, one, length in zip(places, box, lengths, strict=True):
        whole = whole * length + place + one.start
    return whole.astype(np.uint64)


def _fill_rows(out: Tensor, rows: Array, start: int, *, key: int, of: Distribution) -> None:
    """Draw columns from `start` on of some rows; `out` is [rows, columns]."""
    num_columns = out.shape[1]
    for first in range(0, num_columns, _BLOCK):
        count = min(_BLOCK, num_columns - first)
        values = of.values(random_bits(key, rows, range(start + first, start + first + count)))
        out[:, first : first + count].copy_(torch.from_numpy(values))


def random_bits(key: int, rows: Array, columns: range) -> Array:
    """uint32 [rows, columns]: the halves of words of 64 bits, each a hash of key, row and column."""
    first, last = columns.start // 2, (columns.stop + 1) // 2
    along = _mix(_GOLDEN * np.arange(first + 1, last + 1, dtype=np.uint64))
    across = _mix(np.uint64(key) + _GOLDEN * (rows + np.uint64(1)))
    words = _mix(across[:, None] ^ along)
    # The lower half of each word comes first.
    halves = words.astype("<u8", copy=False).view("<u4")
    skipped = columns.start - 2 * first
    return np.ascontiguousarray(halves[:, skipped : skipped + len(columns)])


def _mix(words: Array) -> Array:
    """splitmix64's finalizer, in place."""
    shifted = np.empty_like(words)
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, None)):
        words ^= np.right_shift(words, np.uint64(shift), out=shifted)
        if factor is not None:
            words *= factor
    return words


def _standard_normal(bits: Array) -> Array:
    signed = bits.view("<i4").astype(np.int32, copy=False)
    central = signed.astype(np.float32)
    central += np.float32(0.5)
    central *= np.float32(2.0**-32)

    def tail(of: Array) -> Array:
        # The distance to the nearer end, which float32 has at full precision only as an integer.
        some = signed.reshape(-1)[of]
        magnitude = (some ^ (some >> np.int32(31))).view(np.uint32)
        return (~(magnitude << np.uint32(1))).astype(np.float32) * np.float32(2.0**-33)

    return _quantile(central, tail)


def _quantile(central: Array, tail: Callable[[Array], Array]) -> Array:
    """The normal distribution's quantiles at 0.5 + `central`.

    `tail` gives the smaller probability of the ends at indices of the flat array.
    """
    square = central * central
    np.subtract(_CENTRAL_SQUARE, square, out=square)
    values = _polynomial(_A, square)
    values /= _polynomial(_B, square)
    values *= central
    outer = np.flatnonzero(square < 0)
    if outer.size:
        root = np.sqrt(-_log(tail(outer)))
        root -= _TAIL_SHIFT
        found = _polynomial(_C, root) / _polynomial(_D, root)
        values.reshape(-1)[outer] = np.copysign(found, central.reshape(-1)[outer])
    return values


def _log(values: Array) -> Array:
    """The natural logarithm of normal float32, by the series of atanh."""
    bits = values.view(np.int32)
    exponent = ((bits >> np.int32(23)) - np.int32(127)).astype(np.float32)
    mantissa = ((bits & np.int32(0x007F_FFFF)) | np.int32(0x3F80_0000)).view(np.float32)
    ratio = (mantissa - _ROOT_2) / (mantissa + _ROOT_2)
    of_mantissa = ratio * _polynomial(_ATANH, ratio * ratio)
    logarithm: Array = (exponent + np.float32(0.5)) * np.float32(math.log(2)) + of_mantissa
    return logarithm


def _polynomial(coefficients: tuple[float, ...], at: Array) -> Array:
    """Evaluate by Horner's rule, in float32; the constant is first."""
    last, *others = (np.float32(coefficient) for coefficient in reversed(coefficients))
    value = at * last
    for one in others[:-1]:
        value += one
        value *= at
    value += others[-1]
    return value


def _scaled(values: Array, *, factor: float, offset: float) -> Array:
    """Scale in place; the offset is added only where there is one, and that changes no bit."""
    values *= np.float32(factor)
    if offset:
        values += np.float32(offset)
    return values
