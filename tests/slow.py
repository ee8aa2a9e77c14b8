"""Parameters of which most wait for `make test-slow`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def slow_except(values: Iterable[T], *quick: str, name: Callable[[T], str] = str) -> list[Any]:
    """The values, marked slow but for those with a name in `quick`; AssertionError for one that none has."""
    every = list(values)
    unknown = set(quick) - {name(value) for value in every}
    assert not unknown, f"no parameter is called {', '.join(sorted(unknown))}"
    return [one if name(one) in quick else pytest.param(one, marks=pytest.mark.slow) for one in every]


def mark_sampled(items: Iterable[pytest.Item]) -> None:
    """Mark as slow the cases that a test's `sampled` marker leaves out, before slow tests are deselected."""
    counts: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is None or item.get_closest_marker("slow") is not None:
            continue
        test = item.nodeid.partition("[")[0]
        if counts[test] % sampled.kwargs["every"]:
            item.add_marker(pytest.mark.slow)
        counts[test] += 1
