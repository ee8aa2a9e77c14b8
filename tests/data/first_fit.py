"""First fit decreasing, the yardstick of packings, and length distributions to measure them on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

Draw = Callable[[random.Random, int], int]

DISTRIBUTIONS: Mapping[str, Draw] = {
    "short chats": lambda rng, length: int(rng.lognormvariate(4.5, 0.8)),
    "long chats": lambda rng, length: int(length * rng.betavariate(2, 3)),
    "uniform": lambda rng, length: rng.randint(2, length),
    "short and nearly full": lambda rng, length: (
        rng.randint(10, length // 8) if rng.random() < 0.8 else rng.randint(length // 2, length)
    ),
    "heavy tail": lambda rng, length: int(40 * rng.paretovariate(1.1)),
}
"""A length of at least two tokens, some beyond a sequence, for sequences of a length."""


def lengths_of(name: str, *, length: int, count: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{name} {seed}")
    return [max(2, min(2 * length, DISTRIBUTIONS[name](rng, length))) for _ in range(count)]


def first_fit_decreasing(lengths: Sequence[int], *, room: int) -> int:
    """The number of bins, each length in the first bin that has room, the longest first."""
    size = 1
    while size < len(lengths):
        size *= 2
    # The most room of the bins below each node of a binary tree.
    most = [room] * (2 * size)
    used = 0
    for length in sorted(lengths, reverse=True):
        node = 1
        while node < size:
            node *= 2
            node += most[node] < length
        used = max(used, node - size + 1)
        most[node] -= length
        while node := node // 2:
            most[node] = max(most[2 * node], most[2 * node + 1])
    return used


def best_fit_decreasing(lengths: Sequence[int], *, room: int) -> int:
    """The number of bins, each length in the bin with the least room that is enough, by trying all."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        enough = [left for left in rooms if left >= length]
        if enough:
            rooms.remove(min(enough))
            rooms.append(min(enough) - length)
        else:
            rooms.append(room - length)
    return len(rooms)
