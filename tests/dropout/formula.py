"""The masks of docs/concepts/determinism.md, from its text alone: in Python's integers, and in numpy's."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.uint64]
GOLDEN = 0x9E3779B97F4A7C15
_MODULUS = 2**64


def key_of(seed: int, step: int, name: str, number: int) -> int:
    digest = hashlib.sha256(f"{seed}/dropout/{step}/{name}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") // 2


def is_dropped(key: int, sample: int, row: int, column: int, probability: float) -> bool:
    """One element, with integers of any size."""
    hashed = _mix_one(_mix_one(key + GOLDEN * (sample + 1)) + GOLDEN * (row + 1))
    bits = _mix_one(GOLDEN * (column + 1)) % 2**32 ^ hashed % 2**32
    bits = bits * (hashed // 2**32 | 1) % 2**32
    bits = (bits ^ bits // 2**16) * 0x7FEB352D % 2**32
    return (bits + 2**31) % 2**32 < round(probability * 2**32)


def _mix_one(value: int) -> int:
    value %= _MODULUS
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % _MODULUS
    value = (value ^ value >> 27) * 0x94D049BB133111EB % _MODULUS
    return value ^ value >> 31


def dropped(key: int, shape: tuple[int, ...], probability: float) -> npt.NDArray[np.bool_]:
    """The mask of [samples, ...]: what `is_dropped` says of every element."""
    samples = np.arange(shape[0], dtype=np.uint64)[:, None]
    rows = np.arange(int(np.prod(shape[1:-1])), dtype=np.uint64)[None, :]
    columns = np.arange(shape[-1], dtype=np.uint64)
    with np.errstate(over="ignore"):
        one, golden = np.uint64(1), np.uint64(GOLDEN)
        hashed = _mix(_mix(np.uint64(key) + golden * (samples + one)) + golden * (rows + one))[..., None]
        bits = (_mix(golden * (columns + one)) ^ hashed).astype(np.uint32)
        bits = bits * ((hashed >> np.uint64(32)).astype(np.uint32) | np.uint32(1))
        bits = (bits ^ bits >> np.uint32(16)) * np.uint32(0x7FEB352D) + np.uint32(2**31)
    found: npt.NDArray[np.bool_] = bits.astype(np.uint64) < np.uint64(round(probability * 2**32))
    return found.reshape(shape)


def _mix(value: Ints) -> Ints:
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: Ints = value ^ value >> np.uint64(31)
    return mixed
