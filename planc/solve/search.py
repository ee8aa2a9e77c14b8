"""Best-first search over the choices of a container's modules, with what was refused left out.

A node leaves every family some of its choices, and costs what the cheapest of them cost together. If those
were refused, the node is split: in each part another family changes. So the number of nodes grows with the
conflicts, and not with the families.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from planc.plan.style_actions import StyleAction
from planc.record import record
from planc.solve.choices import Choice, Cost


@record
class Solved:
    """The rules of one container, with what they cost; and the next best, if that was asked for.

    `refused` is the finding about the cheapest rules, which the checks refuse.
    """

    container: str
    actions: tuple[tuple[str, StyleAction], ...]
    cost: Cost
    num_tried: int
    refused: str = ""
    runner_up: tuple[tuple[str, StyleAction], ...] = ()
    runner_up_cost: Cost | None = None


@record
class Solution:
    """The result of a search for a model: the rules by family, and how each container's were chosen.

    `refused` says why there are no rules.
    """

    actions: tuple[tuple[str, StyleAction], ...]
    solved: tuple[Solved, ...]
    refused: str = ""

    @property
    def num_tried(self) -> int:
        return sum(one.num_tried for one in self.solved)


@record
class Combination:
    """A choice for each family of a container, and what they cost together."""

    choices: Mapping[str, Choice]
    cost: Cost
    is_prepared: bool
    """A rule of the container itself sums the gradients of its modules' inputs, once for all."""


Choices = Mapping[str, Sequence[Choice]]
"""The choices of each family, the cheapest first."""

MAX_NODES = 5_000
"""More than ten times what any model of transformers takes."""

_Bits = tuple[int, ...]
"""A bit for each of a family's choices, the cheapest the lowest, for each family."""
_Conflict = Mapping[int, int]
"""Choices, as bits, of some families by their places: refused together."""
_Node = tuple[tuple[int, ...], bool, _Bits]
"""(least cost, whether the input is prepared, what is left), in the order of the search."""


class Search:
    """Goes through combinations, the cheapest first."""

    def __init__(self, streams: Mapping[bool, tuple[Choices, Cost]]) -> None:
        """`streams` has the choices with and without a prepared input, and what the rule for it costs."""
        self._streams = {flag: _Stream(of, base) for flag, (of, base) in streams.items()}

    def refuse(self, is_prepared: bool, choices: Choices) -> None:
        """Leave out what has one of the given choices for each of these families."""
        self._streams[is_prepared].refuse(choices)

    def __iter__(self) -> Iterator[Combination]:
        waiting: list[_Node] = []
        for flag, stream in self._streams.items():
            heapq.heappush(waiting, (stream.least(stream.all), flag, stream.all))
        for _ in range(MAX_NODES):
            if not waiting:
                return
            _, flag, left = heapq.heappop(waiting)
            stream = self._streams[flag]
            if (conflict := stream.conflict(left)) is None:
                yield stream.combination(left, is_prepared=flag)
                conflict = stream.conflict(left) or dict(enumerate(map(_cheapest, left)))
            for part in _parts(left, conflict):
                heapq.heappush(waiting, (stream.least(part), flag, part))


def _parts(left: _Bits, conflict: _Conflict) -> Iterator[_Bits]:
    """Yield what is left without the conflict, in parts that have no combination in common."""
    kept = list(left)
    for place, refused in conflict.items():
        if others := kept[place] & ~refused:
            yield (*kept[:place], others, *kept[place + 1 :])
        kept[place] &= refused


def _cheapest(bits: int) -> int:
    return bits & -bits


class _Stream:
    """The choices with, or without, a prepared input."""

    def __init__(self, of: Choices, base: Cost) -> None:
        self.of, self.base = of, base
        self.all: _Bits = tuple((1 << len(choices)) - 1 for choices in of.values())
        self._costs = [{1 << index: one.cost.key for index, one in enumerate(each)} for each in of.values()]
        self._conflicts: list[_Conflict] = []

    def refuse(self, choices: Choices) -> None:
        places = {family: place for place, family in enumerate(self.of)}
        self._conflicts.append(
            {
                places[family]: sum(1 << self.of[family].index(one) for one in refused)
                for family, refused in choices.items()
            }
        )

    def least(self, left: _Bits) -> tuple[int, ...]:
        """The cost of the cheapest choices."""
        costs = (of[_cheapest(bits)] for of, bits in zip(self._costs, left, strict=True))
        return tuple(map(sum, zip(self.base.key, *costs, strict=True)))

    def conflict(self, left: _Bits) -> _Conflict | None:
        """The refused pair among the cheapest choices that costs the most to avoid."""
        found = [
            conflict
            for conflict in self._conflicts
            if all(refused & _cheapest(left[place]) for place, refused in conflict.items())
        ]
        return max(found, key=lambda conflict: self._to_avoid(conflict, left), default=None)

    def _to_avoid(self, conflict: _Conflict, left: _Bits) -> tuple[bool, tuple[int, ...]]:
        """Whether no part of what is left avoids the conflict, and what the cheapest costs that does."""
        costs = [self.least(part) for part in _parts(left, conflict)]
        return not costs, min(costs, default=())

    def combination(self, left: _Bits, *, is_prepared: bool) -> Combination:
        """The combination of the cheapest choices."""
        indices = (_cheapest(bits).bit_length() - 1 for bits in left)
        chosen = {one: each[index] for (one, each), index in zip(self.of.items(), indices, strict=True)}
        cost = sum((choice.cost for choice in chosen.values()), self.base)
        return Combination(chosen, cost, is_prepared)
