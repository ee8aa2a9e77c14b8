"""Forwards in which equal layers do not all run. Imports torch, for the probe."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from planc.modeling.layers import layer_lists, nature

_KEPT_AT_START, _KEPT_AT_END = 2, 2


@contextlib.contextmanager
def without_equal_layers(model: nn.Module) -> Iterator[Mapping[str, str]]:
    """Inside, of layers that are equal only the first two and the last two run; others pass their input on.

    Yields, for each layer that does not run, an equal one that does.
    """
    named = dict(model.named_modules())
    instead: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for kind in _kinds(model):
            first, standing = named[kind[0]], kind[_KEPT_AT_START - 1] if len(kind) > 1 else kind[0]
            returned: list[Any] = []
            stack.callback(first.register_forward_hook(_noting(returned)).remove)
            for fqn in kind[_KEPT_AT_START : len(kind) - _KEPT_AT_END]:
                instead[fqn] = standing
                layer: Any = named[fqn]
                layer.forward = passing(returned)
                stack.callback(vars(layer).pop, "forward", None)
        yield instead


def also_in_equal_layers(fqns: frozenset[str], instead: Mapping[str, str]) -> frozenset[str]:
    """Names of modules of layers that ran, and of the layers that did not."""
    standing: dict[str, list[str]] = defaultdict(list)
    for fqn, other in instead.items():
        standing[other].append(fqn)
    found = set(fqns)
    for layer, others in standing.items():
        inside = [fqn.removeprefix(layer) for fqn in fqns if fqn == layer or fqn.startswith(f"{layer}.")]
        found.update(f"{other}{name}" for other in others for name in inside)
    return frozenset(found)


def _kinds(model: nn.Module) -> Iterator[list[str]]:
    """Equal layers of a list, in the model's order."""
    for fqn, children in layer_lists(model):
        by_nature: dict[object, list[str]] = defaultdict(list)
        for name, child in children.named_children():
            by_nature[nature(child)].append(f"{fqn}.{name}")
        yield from by_nature.values()


def _noting(returned: list[Any]) -> Callable[..., None]:
    def note(_: nn.Module, args: Any, output: Any) -> None:
        returned[:] = [output]

    return note


def passing(returned: list[Any]) -> Callable[..., Any]:
    """A forward that returns the hidden states it gets, with what else the first of its kind returned."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        states = args[0] if args else kwargs["hidden_states"]
        if isinstance(returned[0], tuple | list):
            return type(returned[0])((states, *returned[0][1:]))
        return states

    return forward
