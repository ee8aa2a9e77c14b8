"""Parameters of which most wait for `make test-slow`."""

from __future__ import annotations

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
