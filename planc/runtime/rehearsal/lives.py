"""The lifetimes of storages in a run without some of its layers, extended to all of them.

What the allocator reserves depends on the order of all allocations, so it is not a sum over layers. Equal
layers allocate equally, so one of them is repeated as often as layers like it were left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

Moment = tuple[int, int]
"""(index of the visit, events before it within the visit)."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A stretch of the run: one layer's forward or backward, or, if `layer` is empty, the time between."""

    layer: str
    is_forward: bool
    num_events: int


@dataclass(frozen=True, slots=True)
class Life:
    """A block of memory on a stream, in bytes. `freed` is None if it outlives the run."""

    num_bytes: int
    stream: str
    made: Moment
    freed: Moment | None
    owner: str = ""
    """The layer whose parameter, optimizer state or copy of one it is, made outside its own visits."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Every block of a run."""

    visits: tuple[Visit, ...]
    blocks: tuple[Life, ...]


def repeated(lives: Lives, layer: str, *, times: int) -> Lives:
    """The run with `times` more layers like this one: after it in forward, and so before it in backward.

    Blocks that pass from one layer to the next, as hidden states and prefetched parameters, pass from each
    copy to the next one.
    """
    copies = _Copies(lives, layer, times)
    return Lives(tuple(copies.visits()), tuple(copies.blocks()))


class _Copies:
    """The positions of a layer's copies. Copy 0 is the layer itself, the last is the deepest."""

    def __init__(self, lives: Lives, layer: str, times: int) -> None:
        self._lives, self._layer, self._times = lives, layer, times
        self._own = [index for index, visit in enumerate(lives.visits) if visit.layer == layer]
        self._first_seen: dict[str, int] = {}
        self._start: list[int] = []
        start = 0
        for index, visit in enumerate(lives.visits):
            self._first_seen.setdefault(visit.layer, index)
            self._start.append(start)
            start += times + 1 if visit.layer == layer else 1

    def visits(self) -> Iterator[Visit]:
        for visit in self._lives.visits:
            if visit.layer != self._layer:
                yield visit
                continue
            for place in range(self._times + 1):
                copy = place if visit.is_forward else self._times - place
                yield replace(visit, layer=f"{visit.layer}+{copy}" if copy else visit.layer)

    def blocks(self) -> Iterator[Life]:
        for life in self._lives.blocks:
            if self._layer in (self._visit(life.made).layer, life.owner):
                for copy in range(self._times + 1):
                    freed = None if life.freed is None else self._freed(life.freed, copy)
                    yield replace(life, made=self._at(life.made, copy), freed=freed)
            else:
                # A block that the layer takes over from a deeper one goes to the deepest copy.
                copy = self._times if self._is_deeper(life.made) else 0
                freed = None if life.freed is None else self._at(life.freed, copy)
                yield replace(life, made=self._at(life.made, 0), freed=freed)

    def _visit(self, moment: Moment) -> Visit:
        return self._lives.visits[moment[0]]

    def _at(self, moment: Moment, copy: int) -> Moment:
        visit = self._visit(moment)
        if visit.layer != self._layer:
            return self._start[moment[0]], moment[1]
        return self._start[moment[0]] + (copy if visit.is_forward else self._times - copy), moment[1]

    def _is_deeper(self, moment: Moment) -> bool:
        layer = self._visit(moment).layer
        return bool(layer) and self._first_seen[layer] > self._first_seen[self._layer]

    def _freed(self, moment: Moment, copy: int) -> Moment:
        """When a copy's block is freed: by another layer means by the next copy on that layer's side."""
        visit = self._visit(moment)
        if visit.layer in ("", self._layer):
            return self._at(moment, copy)
        next_copy = copy + 1 if self._is_deeper(moment) else copy - 1
        if not 0 <= next_copy <= self._times:
            return self._at(moment, 0)
        own = min(self._own_visits(is_forward=visit.is_forward), key=lambda index: abs(index - moment[0]))
        last_event = self._lives.visits[own].num_events - 1
        return self._at((own, min(moment[1], last_event)), next_copy)

    def _own_visits(self, *, is_forward: bool) -> list[int]:
        return [index for index in self._own if self._lives.visits[index].is_forward == is_forward]
