"""Forwards in which equal layers do not all run. Imports torch, for the probe."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from torch import nn

from planc.modeling.layers import equal_layers

Value = TypeVar("Value")


@contextlib.contextmanager
def without_equal_layers(model: nn.Module) -> Iterator[Mapping[str, str]]:
    """Inside, of layers that are equal only the first two and the last two run; others pass their input on.

    Yields, for each layer that does not run, an equal one that does.
    """
    named = dict(model.named_modules())
    instead: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for kind in equal_layers(model):
            returned: list[Any] = []
            if kind.left_out:
                hook = named[kind.layers[0]].register_forward_hook(_noting(returned))
                stack.callback(hook.remove)
            for fqn in kind.left_out:
                instead[fqn] = kind.inner
                layer: Any = named[fqn]
                layer.forward = passing(returned)
                stack.callback(vars(layer).pop, "forward", None)
        yield instead


def in_equal_layers(fqns: Collection[str], instead: Mapping[str, str]) -> dict[str, str]:
    """The modules of layers that did not run whose equals are among `fqns`, each with its equal."""
    standing: dict[str, list[str]] = defaultdict(list)
    for fqn, other in instead.items():
        standing[other].append(fqn)
    found: dict[str, str] = {}
    for layer, others in standing.items():
        inside = [fqn for fqn in fqns if fqn == layer or fqn.startswith(f"{layer}.")]
        found |= {f"{other}{fqn.removeprefix(layer)}": fqn for other in others for fqn in inside}
    return found


def also_in_equal_layers(fqns: Collection[str], instead: Mapping[str, str]) -> frozenset[str]:
    """Names of modules of layers that ran, and of the layers that did not."""
    return frozenset((*fqns, *in_equal_layers(fqns, instead)))


def with_equal_layers(values: Mapping[str, Value], instead: Mapping[str, str]) -> dict[str, Value]:
    """Values of modules of layers that ran, and for the layers that did not those of their equals."""
    return {**values, **{fqn: values[equal] for fqn, equal in in_equal_layers(values, instead).items()}}


def _noting(returned: list[Any]) -> Callable[..., None]:
    def note(_: nn.Module, args: Any, output: Any) -> None:
        returned[:] = [output]

    return note


def passing(returned: list[Any]) -> Callable[..., Any]:
    """A forward that returns the hidden states it gets, with what else the first of its kind returned."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        states = states_of(args, kwargs)
        if isinstance(returned[0], tuple | list):
            return type(returned[0])((states, *returned[0][1:]))
        return states

    return forward


def states_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The hidden states among a layer's arguments."""
    return args[0] if args else kwargs["hidden_states"]
