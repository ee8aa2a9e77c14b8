"""The order of FSDP units: every one after all whose modules it holds."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.plan.spec import Unit
from planc.plan.units import UnitGroup, cycles, in_waves
from planc.source import Span


def group(*fqns: str, line: int = 1) -> UnitGroup:
    return UnitGroup(fqns, Unit(reshard_after_forward=True), Span("x.plan", line, 1, line, 2))


def holds(outer: UnitGroup, inner: UnitGroup) -> bool:
    return outer.fqns != inner.fqns and any(
        name.startswith(f"{module}.") for module in outer.fqns for name in inner.fqns
    )


TREES = (
    (group("a"), group("a.b"), group("a.b.c")),
    (group("x.a", "y.b.c"), group("y.b", "w.q.r.s"), group("x")),
    (group("a.b", "c"), group("c.d"), group("a")),
)


@pytest.mark.parametrize(
    "groups",
    [order for tree in TREES for order in permutations(tree)],
    ids=lambda groups: str(groups[0].fqns),
)
def test_a_unit_comes_after_all_that_it_holds(groups: tuple[UnitGroup, ...]) -> None:
    ordered = in_waves(groups)
    assert {one.fqns for one in ordered} == {one.fqns for one in groups}
    for index, outer in enumerate(ordered):
        assert not any(holds(outer, later) for later in ordered[index + 1 :])
        assert all(inner.wave < outer.wave for inner in ordered if holds(outer, inner))
    assert list(cycles(ordered)) == []


def test_units_of_one_depth_are_one_wave_in_the_order_given() -> None:
    ordered = in_waves((group("a.1"), group("b"), group("a.0")))
    assert [(one.fqns[0], one.wave) for one in ordered] == [("a.1", 0), ("a.0", 0), ("b", 1)]


def test_two_lists_that_hold_each_other_are_a_circle() -> None:
    first, second = group("a", "b.x", line=1), group("b", "a.x", line=2)
    ((one, other),) = cycles(in_waves((group("c"), first, second)))
    assert {one[1], other[1]} == {"a.x", "b.x"}


def test_what_waits_for_a_circle_is_no_part_of_it() -> None:
    groups = (group("m"), group("m.a", "m.b.x"), group("m.b", "m.a.x"), group("m.a.x.y"))
    (circle,) = cycles(in_waves(groups))
    assert {one.fqns for one, _ in circle} == {("m.a", "m.b.x"), ("m.b", "m.a.x")}


def test_two_circles_are_two() -> None:
    groups = [
        one for root in "pq" for one in (group(f"{root}.a", f"{root}.b.x"), group(f"{root}.b", f"{root}.a.x"))
    ]
    assert len(list(cycles(in_waves(groups)))) == 2


NAMES = [f"{a}{b}{c}" for a in "mn" for b in ("", ".0", ".1") for c in ("", ".2", ".3")]


@given(st.permutations(sorted(set(NAMES))), st.lists(st.integers(1, 3), min_size=1))
def test_units_are_in_order_unless_some_hold_one_another(names: list[str], sizes: list[int]) -> None:
    groups, start = [], 0
    for size in sizes:
        groups.extend([group(*names[start : start + size])] if names[start : start + size] else [])
        start += size
    ordered = in_waves(groups)
    is_sound = not any(
        holds(outer, later) for index, outer in enumerate(ordered) for later in ordered[index + 1 :]
    )
    assert is_sound or list(cycles(ordered))
