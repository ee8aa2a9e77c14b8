"""Random numbers that follow from a key and an element's place in a tensor. Any part is drawn on its own.

docs/concepts/determinism.md has the formula. After the hash there are only additions, multiplications,
divisions and square roots, which IEEE 754 rounds exactly, each an operation of its own: bits depend neither
on the number of elements that are drawn together nor on the device, which is the tensor's. 64-bit words are
int64 and 32-bit ones int32 here: both wrap around, and a right shift is masked to be a logical one. Normal
numbers are by Wichura's algorithm AS 241 (PPND7), from "The Percentage Points of the Normal Distribution",
Applied Statistics 37 (1988).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Box = tuple[slice, ...]
"""Consecutive elements along each dimension, with a start and a stop."""


def signed(value: int, *, bits: int) -> int:
    """The signed integer with the same bits."""
    return value - (1 << bits) if value >> (bits - 1) else value


GOLDEN = signed(0x9E37_79B9_7F4A_7C15, bits=64)
_FIRST, _SECOND = signed(0xBF58_476D_1CE4_E5B9, bits=64), signed(0x94D0_49BB_1331_11EB, bits=64)
_CPU_BLOCK, _DEVICE_BLOCK = 1 << 15, 1 << 20
"""Elements that are drawn at once: by a thread of the CPU, whose cache holds them, and by a device."""
_CENTRAL, _CENTRAL_SQUARE = 0.425, 0.180625
_A = (3.3871327179, 50.434271938, 159.29113202, 59.109374720)
_B = (1.0, 17.895169469, 78.757757664, 67.187563600)
_C = (1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103)
_D = (1.0, 0.73700164250, 0.12021132975)
_TAIL_SHIFT = 1.6
_ATANH = (2.0, 2 / 3, 2 / 5, 2 / 7)
_ROOT_2 = math.sqrt(2)


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution."""

    mean: float
    std: float

    def values(self, bits: Tensor) -> Tensor:
        """float32, from int32 of any shape."""
        return _scaled(_standard_normal(bits), factor=self.std, offset=self.mean)


@dataclass(frozen=True, slots=True)
class Uniform:
    """A uniform distribution over [low, high)."""

    low: float
    high: float

    def values(self, bits: Tensor) -> Tensor:
        """float32, from int32 of any shape; 24 bits of them count."""
        unit = (bits >> 8).bitwise_and_(0x00FF_FFFF).float().mul_(2.0**-24)
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

    def values(self, bits: Tensor) -> Tensor:
        """float32, from int32 of any shape."""
        first, last = self.mass()
        share = bits.long().bitwise_and_(0xFFFF_FFFF).double()
        share.add_(0.5).mul_((last - first) * 2.0**-32).add_(first)
        central = (share - 0.5).float()
        tail = torch.minimum(share, 1 - share).float().flatten()
        values = _scaled(_quantile(central, lambda of: tail[of]), factor=self.std, offset=self.mean)
        return values.clamp_(self.low, self.high)


LEAST = 0.3
"""The least share of a normal distribution that a truncated one keeps, here."""

Distribution = Normal | Uniform | TruncatedNormal


def fill(out: Tensor, box: Box, *, shape: tuple[int, ...], key: int, of: Distribution) -> None:
    """Draw the elements `box` of a tensor of this shape into `out`, rounded once to its dtype."""
    if not out.numel():
        return
    if out.dim() < 2:
        rows = torch.zeros(1, dtype=torch.int64, device=out.device)
        _fill_rows(out.view(1, -1), rows, box[0].start if box else 0, key=key, of=of)
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
    numbers = _row_numbers(box[:-1], lengths=shape[:-1], device=out.device)
    step = max(1, _block(out) // out.shape[-1])
    for first in range(0, len(rows), step):
        some = slice(first, first + step)
        _fill_rows(rows[some], numbers[some], box[-1].start, key=key, of=of)


def _block(out: Tensor) -> int:
    return _CPU_BLOCK * torch.get_num_threads() if out.device.type == "cpu" else _DEVICE_BLOCK


def _row_numbers(box: Box, *, lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """int64 [rows]: the rows of a box, in order, by their numbers in the whole tensor."""
    numbers = torch.zeros(1, dtype=torch.int64, device=device)
    for one, length in zip(box, lengths, strict=True):
        places = torch.arange(one.start, one.stop, device=device)
        numbers = (numbers[:, None] * length + places).flatten()
    return numbers


def _fill_rows(out: Tensor, rows: Tensor, start: int, *, key: int, of: Distribution) -> None:
    """Draw columns from `start` on of some rows; `out` is [rows, columns]."""
    num_columns, block = out.shape[1], _block(out)
    for first in range(0, num_columns, block):
        count = min(block, num_columns - first)
        bits = random_bits(key, rows, range(start + first, start + first + count))
        out[:, first : first + count].copy_(of.values(bits))


def random_bits(key: int, rows: Tensor, columns: range) -> Tensor:
    """int32 [rows, columns]: the halves of words of 64 bits, each a hash of key, row and column."""
    first, last = columns.start // 2, (columns.stop + 1) // 2
    along = mix(GOLDEN * torch.arange(first + 1, last + 1, device=rows.device))
    across = mix(GOLDEN * (rows + 1) + signed(key, bits=64))
    # The lower half of each word comes first.
    halves = mix(across[:, None] ^ along).view(torch.int32)
    skipped = columns.start - 2 * first
    return halves[:, skipped : skipped + len(columns)].contiguous()


def mix(value: Tensor) -> Tensor:
    """splitmix64's finalizer of int64: every bit of the result depends on all bits."""
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _FIRST
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _SECOND
    return value ^ ((value >> 31) & ((1 << 33) - 1))


def _standard_normal(bits: Tensor) -> Tensor:
    def tail(of: Tensor) -> Tensor:
        # The distance to the nearer end, which float32 has at full precision only as an integer.
        some = bits.flatten()[of]
        magnitude = (some ^ (some >> 31)).long()
        return ((1 << 32) - 1 - 2 * magnitude).float() * 2.0**-33

    return _quantile(bits.float().add_(0.5).mul_(2.0**-32), tail)


def _quantile(central: Tensor, tail: Callable[[Tensor], Tensor]) -> Tensor:
    """The normal distribution's quantiles at 0.5 + `central`.

    `tail` gives the smaller probability of the ends at indices of the flat tensor.
    """
    square = _CENTRAL_SQUARE - central * central
    values = _polynomial(_A, square).div_(_polynomial(_B, square)).mul_(central)
    (outer,) = (square.flatten() < 0).nonzero(as_tuple=True)
    if outer.numel():
        # In float32, CPUs' square roots by vectors are not rounded exactly.
        root = (-_log(tail(outer))).double().sqrt_().float().sub_(_TAIL_SHIFT)
        found = _polynomial(_C, root).div_(_polynomial(_D, root))
        values.view(-1)[outer] = found.copysign_(central.flatten()[outer])
    return values


def _log(values: Tensor) -> Tensor:
    """The natural logarithm of normal float32, by the series of atanh."""
    bits = values.view(torch.int32)
    exponent = ((bits >> 23) - 127).float()
    mantissa = ((bits & 0x007F_FFFF) | 0x3F80_0000).view(torch.float32)
    ratio = (mantissa - _ROOT_2).div_(mantissa + _ROOT_2)
    of_mantissa = _polynomial(_ATANH, ratio * ratio).mul_(ratio)
    return (exponent + 0.5).mul_(math.log(2)).add_(of_mantissa)


def _polynomial(coefficients: tuple[float, ...], at: Tensor) -> Tensor:
    """Evaluate by Horner's rule, in float32; the constant is first."""
    last, *others = reversed(coefficients)
    value = at * last
    for one in others[:-1]:
        value.add_(one).mul_(at)
    return value.add_(others[-1])


def _scaled(values: Tensor, *, factor: float, offset: float) -> Tensor:
    """Scale in place; the offset is added only where there is one, and that changes no bit."""
    values.mul_(factor)
    return values.add_(offset) if offset else values
