"""Best fit decreasing over a bounded window: which documents share a sequence."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

_WINDOW_TOKENS = 1 << 22
_WINDOW_SEQUENCES = 64
"""The window has the larger of the two. What fills few sequences leaves much of the last ones empty."""


class Sized(Protocol):
    """A piece whose length is the number of positions that it takes."""

    def __len__(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


def best_fit(lengths: Sequence[int], *, room: int) -> list[list[int]]:
    """The indices that share each bin of size `room`, ascending: the longest first, each where the least
    room is left.

    Of equal lengths the first is placed first, and of bins with equal room the one that got its room last.
    All lengths are from 1 to `room`.
    """
    bins: list[list[int]] = []
    rooms: list[int] = []
    """The sizes of room that bins have left, ascending, each once."""
    with_room: dict[int, list[int]] = {}
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = bisect_left(rooms, lengths[index])
        if place == len(rooms):
            number, left = len(bins), room
            bins.append([])
        else:
            left = rooms[place]
            number = with_room[left].pop()
            if not with_room[left]:
                del with_room[left], rooms[place]
        bins[number].append(index)
        left -= lengths[index]
        if left:
            if left not in with_room:
                insort(rooms, left)
                with_room[left] = []
            with_room[left].append(number)
    for one in bins:
        one.sort()
    return bins


def fitted(items: Iterable[Item], *, room: int, window: int | None = None) -> Iterator[list[Item]]:
    """Bins of items, each item once and whole, while `window` tokens at most wait to be placed.

    Of a full window the fuller half of its bins leaves, and the rest waits for items that fit better. Bins
    that leave together are in the order of their first items. No item is longer than `room`.
    """
    window = window or max(_WINDOW_TOKENS, _WINDOW_SEQUENCES * room)
    waiting: list[Item] = []
    num_waiting = 0
    for item in items:
        waiting.append(item)
        num_waiting += len(item)
        if num_waiting >= window:
            leaving, staying = _fuller_half(waiting, room=room)
            yield from leaving
            waiting, num_waiting = staying, sum(map(len, staying))
    for bin in sorted(best_fit([len(item) for item in waiting], room=room)):
        yield [waiting[index] for index in bin]


def _fuller_half(items: list[Item], *, room: int) -> tuple[list[list[Item]], list[Item]]:
    """The fuller half of the bins, and the other items in their order."""
    lengths = [len(item) for item in items]
    bins = sorted(best_fit(lengths, room=room))
    by_room = sorted(range(len(bins)), key=lambda number: room - sum(lengths[i] for i in bins[number]))
    leaving = sorted(by_room[: -(-len(bins) // 2)])
    placed = {index for number in leaving for index in bins[number]}
    staying = [item for index, item in enumerate(items) if index not in placed]
    return [[items[index] for index in bins[number]] for number in leaving], staying
