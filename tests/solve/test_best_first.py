"""The search yields what was not refused, the cheapest first, in few nodes for any number of families."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from planc.solve import search
from planc.solve.choices import Choice, Cost
from planc.solve.search import Choices, Combination, Search

NUM_FAMILIES, NUM_CHOICES = 12, 6
Numbers = tuple[int, ...]
"""The number of each family's choice."""


def choices_of(num_families: int, costs: Sequence[int]) -> Choices:
    """Families with the same costs; a choice's rank is its number."""
    found = tuple(Choice(None, Cost(sent=cost, rank=number)) for number, cost in enumerate(costs))
    return {f"family_{number}": found for number in range(num_families)}


def numbers_of(one: Combination) -> Numbers:
    return tuple(choice.cost.rank for choice in one.choices.values())


def drawn(generator: random.Random, choices: Choices) -> Mapping[str, tuple[Choice, ...]]:
    """Some choices of a few families."""
    families = generator.sample(sorted(choices), generator.randint(1, 3))
    return {one: tuple(generator.sample(choices[one], generator.randint(1, 2))) for one in families}


def allowed(choices: Choices, conflicts: Sequence[Mapping[str, tuple[Choice, ...]]]) -> Iterator[Numbers]:
    for numbers in itertools.product(*(range(len(each)) for each in choices.values())):
        chosen = {one: each[number] for (one, each), number in zip(choices.items(), numbers, strict=True)}
        if not any(all(chosen[one] in each for one, each in conflict.items()) for conflict in conflicts):
            yield numbers


@pytest.mark.parametrize("seed", range(20))
def test_it_yields_all_that_was_not_refused_once_and_the_cheapest_first(seed: int) -> None:
    generator = random.Random(seed)
    costs = sorted(generator.randrange(50) for _ in range(4))
    choices = choices_of(5, costs)
    conflicts = [drawn(generator, choices) for _ in range(12)]
    searched = Search({False: (choices, Cost())})
    for conflict in conflicts:
        searched.refuse(False, conflict)
    found = list(searched)
    expected = sorted(allowed(choices, conflicts))
    assert sorted(map(numbers_of, found)) == expected
    sent = [sum(costs[number] for number in numbers_of(one)) for one in found]
    assert [one.cost.sent for one in found] == sent == sorted(sent)


def test_what_is_refused_on_the_way_is_left_out_from_then_on() -> None:
    choices = choices_of(2, (0, 1, 3))
    searched = Search({False: (choices, Cost())})
    first, found = choices["family_0"][0], []
    for one in searched:
        found.append(numbers_of(one))
        if found == [(0, 0)]:
            searched.refuse(False, {"family_0": (first,)})
    assert found[:2] == [(0, 0), (1, 0)]
    assert sorted(found[1:]) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


def test_of_equal_costs_those_without_a_prepared_input_come_first() -> None:
    choices = choices_of(2, (0, 1))
    searched = Search({True: (choices, Cost()), False: (choices, Cost())})
    assert [one.is_prepared for one in itertools.islice(searched, 2)] == [False, True]


def test_families_that_conflict_are_found_among_many_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_NODES", NUM_FAMILIES * NUM_CHOICES)
    choices = choices_of(NUM_FAMILIES, (*[0] * (NUM_CHOICES - 1), 1))
    first, *_, last = choices
    cheap = {one: choices[one][:-1] for one in (first, last)}
    searched = Search({False: (choices, Cost())})
    searched.refuse(False, cheap)
    best = next(iter(searched))
    assert best.cost.sent == 1
    assert choices[first][-1] in best.choices.values()
