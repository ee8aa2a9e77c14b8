"""Best-first search over the choices of a container's modules, with what was refused left out."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from planc.record import record
from planc.solve.choices import Choice, Cost


@record
class Combination:
    """A choice for each family of a container, and what they cost together."""

    choices: Mapping[str, Choice]
    cost: Cost
    is_prepared: bool
    """A rule of the container itself sums the gradients of its modules' inputs, once for all."""


Choices = Mapping[str, Sequence[Choice]]
"""The choices of each family, the cheapest first."""


MAX_STARTS = 60_000
"""Of combinations: more than any model of transformers takes, and about two seconds."""


class Search:
    """Goes through combinations, the cheapest first. A start of one that was refused is not followed."""

    def __init__(self, streams: Mapping[bool, tuple[Choices, Cost]]) -> None:
        """`streams` has the choices with and without a prepared input, and what the rule for it costs."""
        self._streams = streams
        self._refused: dict[bool, list[Mapping[int, frozenset[int]]]] = {flag: [] for flag in streams}
        self._waiting: list[tuple[tuple[int, ...], int, bool, tuple[int, ...]]] = []
        for flag, (of, base) in streams.items():
            least = sum((choices[0].cost for choices in of.values()), base)
            heapq.heappush(self._waiting, (least.key, 0, flag, ()))

    def refuse(self, is_prepared: bool, choices: Choices) -> None:
        """Leave out what has one of the given choices for each of these families."""
        of, _ = self._streams[is_prepared]
        places = {family: place for place, family in enumerate(of)}
        found = {
            places[family]: frozenset(map(of[family].index, refused)) for family, refused in choices.items()
        }
        self._refused[is_prepared].append(found)

    def __iter__(self) -> Iterator[Combination]:
        for _ in range(MAX_STARTS):
            if not self._waiting:
                return
            least, _, is_prepared, indices = heapq.heappop(self._waiting)
            if self._is_refused(is_prepared, indices):
                continue
            of, base = self._streams[is_prepared]
            if len(indices) == len(of):
                chosen = {one: of[one][index] for one, index in zip(of, indices, strict=True)}
                yield Combination(chosen, sum((one.cost for one in chosen.values()), base), is_prepared)
                continue
            choices = tuple(of.values())[len(indices)]
            for index, choice in enumerate(choices):
                # The least that a combination with this start can cost; of equals, the longest first.
                more = map(int.__sub__, choice.cost.key, choices[0].cost.key)
                cost = tuple(map(int.__add__, least, more))
                heapq.heappush(self._waiting, (cost, -len(indices) - 1, is_prepared, (*indices, index)))

    def _is_refused(self, is_prepared: bool, indices: tuple[int, ...]) -> bool:
        length = len(indices)
        return any(
            all(place < length and indices[place] in refused for place, refused in found.items())
            for found in self._refused[is_prepared]
        )
