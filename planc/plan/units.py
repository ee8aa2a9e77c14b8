"""The order in which FSDP units are sharded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planc.plan.spec import Unit
from planc.record import record
from planc.source import Span
from planc.vocab import outwards


@record
class UnitGroup:
    """Modules that FSDP gathers together; the root's group has the fqn "" alone.

    Groups of one `wave` hold none of one another's modules: their order is free.
    """

    fqns: tuple[str, ...]
    unit: Unit
    span: Span
    wave: int = 0


def with_experts(groups: Sequence[UnitGroup], experts: Mapping[str, Span]) -> tuple[UnitGroup, ...]:
    """The groups, and one for each module of experts that ranks share, which FSDP shards over fewer ranks.

    It has the options of the unit around it, unless a rule names it.
    """
    plain = Unit(reshard_after_forward=True)
    unit_of = {fqn: group.unit for group in groups for fqn in group.fqns}
    own = (
        UnitGroup((fqn,), next((unit_of[name] for name in outwards(fqn) if name in unit_of), plain), span)
        for fqn, span in experts.items()
        if fqn not in unit_of
    )
    return (*groups, *own)


def in_waves(groups: Sequence[UnitGroup]) -> tuple[UnitGroup, ...]:
    """The groups, inner before outer; within a wave as they came.

    `fully_shard` gives a module every parameter that no unit inside it has taken, so a group comes after
    every other whose modules it holds. Of those that can come next, the deepest do. Where groups hold one
    another, what is left makes the last wave: `cycles` names them.
    """
    inner = _inner(groups)
    waiting = set(range(len(groups)))
    ordered: list[UnitGroup] = []
    wave = 0
    while waiting:
        ready = [index for index in sorted(waiting) if inner[index].keys().isdisjoint(waiting)]
        deepest = max((_depth(groups[index]) for index in ready), default=None)
        chosen = [index for index in ready if _depth(groups[index]) == deepest] or sorted(waiting)
        ordered.extend(replace(groups[index], wave=wave) for index in chosen)
        waiting.difference_update(chosen)
        wave += 1
    return tuple(ordered)


def cycles(groups: Sequence[UnitGroup]) -> Iterator[tuple[tuple[UnitGroup, str], ...]]:
    """Each circle of groups that hold one another: (group, the next group's module that it holds)."""
    inner = _inner(groups)
    left = set(range(len(groups)))
    while left:
        holding = {index for index in left if not inner[index].keys().isdisjoint(left)}
        if len(holding) < len(left):
            left = holding
            continue
        # Each of these holds another of them, so following them inwards leads back.
        path = [min(left)]
        while (following := next(index for index in inner[path[-1]] if index in left)) not in path:
            path.append(following)
        circle = path[path.index(following) :]
        yield tuple(
            (groups[index], inner[index][held])
            for index, held in zip(circle, (*circle[1:], circle[0]), strict=True)
        )
        left.difference_update(circle)


def _inner(groups: Sequence[UnitGroup]) -> tuple[Mapping[int, str], ...]:
    """The other groups that each group holds modules of: indices, each with the first such module."""
    owners = {fqn: index for index, group in enumerate(groups) for fqn in group.fqns}
    inner: tuple[dict[int, str], ...] = tuple({} for _ in groups)
    for fqn, index in owners.items():
        for end, character in enumerate(fqn):
            holder = owners.get(fqn[:end]) if character == "." else None
            if holder is not None and holder != index:
                inner[holder].setdefault(index, fqn)
    return inner


def _depth(group: UnitGroup) -> tuple[int, int]:
    """Dots in the shallowest member's name, then in the deepest's."""
    depths = [fqn.count(".") for fqn in group.fqns]
    return min(depths), max(depths)
