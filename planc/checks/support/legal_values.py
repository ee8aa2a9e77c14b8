"""Legal values for help lines."""

from __future__ import annotations

from collections.abc import Iterable


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return tuple(sorted({*small, *(number // size for size in small)}))


def choices(values: Iterable[int], *, near: int, limit: int = 8) -> str:
    """`1, 2 or 4`: the `limit` values nearest to `near`, ascending."""
    nearest = sorted(sorted(values, key=lambda value: (abs(value - near), value))[:limit])
    texts = [f"{value:_}" if value >= 10_000 else str(value) for value in nearest]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def multiples_around(number: int, *, of: int) -> tuple[int, ...]:
    """The multiples of `of` just below and just above a number, without 0."""
    below = number // of * of
    return tuple(value for value in (below, below + of) if value)
