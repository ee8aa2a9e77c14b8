"""Parameters of which most wait for `make test-slow`, and files that take long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

LONG = frozenset(
    (
        *("contributing", "data", "dist", "docs", "faults", "gpu", "lattice", "launch", "models", "own_code"),
        *("parity", "rehearsal", "soundness", "tune"),
    )
)
"""Folders whose tests take seconds each, most of them on several ranks."""
_SHARE = 0.1
"""A test's time elsewhere, as a share of one's in these folders."""


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


def longest_first(items: list[pytest.Item], tests: Path) -> None:
    """Sort files by how long they probably take, so that no worker is left alone with a long one."""
    sizes = Counter(item.path for item in items if item.get_closest_marker("slow") is None)
    times = {
        path: size * (1.0 if path.relative_to(tests).parts[0] in LONG else _SHARE)
        for path, size in sizes.items()
    }
    items.sort(key=lambda item: -times.get(item.path, 0.0))
