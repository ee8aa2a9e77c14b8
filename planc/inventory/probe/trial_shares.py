"""A rank's part of an attention in a trial: of its projections and of its arguments. Imports torch."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from planc.inventory.head_shares import PerHead
from planc.modeling.head_counts import Heads, widths_by_heads
from planc.record import record

Layout = int | str
"""A projection's layout of queries, keys and values: so many parts of one width in sequence, or `HEADS`."""
BLOCK: Layout = 1
HEADS: Layout = "heads"
"""Queries, then keys, then values, each as wide as its heads."""
_FUSED: tuple[Layout, ...] = (3, HEADS)
_MAX_FUSED = 2
"""The most layers before the last of which one may hold several projections."""


def widths_of(layout: Layout, features: int, heads: Heads) -> tuple[int, ...] | None:
    """The widths of what a projection of so many features holds; None if it can't hold that."""
    if isinstance(layout, int):
        return (features // layout,) * layout if features % layout == 0 else None
    return widths_by_heads(features, heads)


def layouts_of(features: Sequence[int], heads: Heads) -> Iterator[tuple[Layout, ...]]:
    """The layouts of the first layers, by their features: plain blocks first; each set of widths once."""
    choices: list[tuple[Layout, ...]] = [(BLOCK,) for _ in features]
    if len(features) == 1:
        choices = [(BLOCK, *_FUSED)]
    elif len(features) == _MAX_FUSED:
        choices = [(BLOCK, 2) for _ in features]
    seen: set[tuple[tuple[int, ...] | None, ...]] = set()
    for layouts in itertools.product(*choices):
        widths = tuple(widths_of(one, size, heads) for one, size in zip(layouts, features, strict=True))
        if None not in widths and widths not in seen:
            seen.add(widths)
            yield layouts


@record
class Arguments:
    """The arguments of a call by name."""

    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]
    names: tuple[str, ...]
    """The names of the positional ones."""

    def items(self) -> Iterator[tuple[str, Any]]:
        yield from zip(self.names, self.positional, strict=True)
        yield from self.keywords.items()


def named_arguments(module: nn.Module, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> Arguments:
    """The arguments of a module's call; those beyond the names of its forward are left out."""
    names = tuple(inspect.signature(module.forward).parameters)[: len(positional)]
    return Arguments(positional[: len(names)], keywords, names)


def per_head_arguments(arguments: Arguments, *, num_heads: int, num_samples: int) -> tuple[PerHead, ...]:
    """The tensors that may have a value for each head. What parameters compute is left out: ranks would have
    parts of its gradient."""
    found = (
        (name, value, _dim_of_heads(value, num_heads=num_heads, num_samples=num_samples))
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.ndim > 2
    )
    return tuple(PerHead(name, *dim) for name, value, dim in found if dim and not value.requires_grad)


def _dim_of_heads(value: Tensor, *, num_heads: int, num_samples: int) -> tuple[int, bool] | None:
    if value.shape[0] == num_heads * num_samples:
        return 0, num_samples > 1
    dim = next((dim for dim, size in enumerate(value.shape[:-2]) if size == num_heads), None)
    return None if dim is None else (dim, False)
