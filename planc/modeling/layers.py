"""The layers of a model, what tells them apart, and which of equal ones run. Imports torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

_PLACE = ("layer_idx", "layer_index", "layer_id")
"""Attributes for a layer's position, which do not affect what it computes."""
_KEPT_AT_START, _KEPT_AT_END = 2, 2


@dataclass(frozen=True, slots=True)
class EqualLayers:
    """The names of equal layers of a list, in the model's order. The first two and the last two run."""

    layers: tuple[str, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """The layers that run."""
        if len(self.layers) <= _KEPT_AT_START + _KEPT_AT_END:
            return self.layers
        return (*self.layers[:_KEPT_AT_START], *self.layers[-_KEPT_AT_END:])

    @property
    def left_out(self) -> tuple[str, ...]:
        """The layers that do not run."""
        return self.layers[_KEPT_AT_START:-_KEPT_AT_END]

    @property
    def inner(self) -> str:
        """A layer that runs, between two of its kind; only if some are left out."""
        return self.layers[_KEPT_AT_START - 1]


def equal_layers(
    model: nn.Module, *, treatment: Callable[[str], object] = lambda fqn: ()
) -> Iterator[EqualLayers]:
    """The layers of each list by kind: of one nature, and with the same `treatment`, which gets a name."""
    for fqn, children in layer_lists(model):
        by_kind: dict[object, list[str]] = defaultdict(list)
        for name, child in children.named_children():
            layer = f"{fqn}.{name}"
            by_kind[nature(child), treatment(layer)].append(layer)
        yield from (EqualLayers(tuple(layers)) for layers in by_kind.values())


def layer_lists(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """The outermost module lists of layers: the experts of a layer are part of that layer."""
    found: list[str] = []
    for fqn, module in model.named_modules():
        is_inner = any(fqn.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and not is_inner and _are_layers(module):
            found.append(fqn)
            yield fqn, module


def _are_layers(members: nn.ModuleList) -> bool:
    """Whether all are made of modules. Code takes single modules by number, each for what it is."""
    return len(members) > 0 and all(
        any(True for _ in member.children()) and any(True for _ in member.parameters()) for member in members
    )


def nature(layer: nn.Module) -> tuple[object, ...]:
    """Return a layer's nature: types, settings, shapes and dtypes of all in it, without its position."""
    return tuple((name, *_settings(module), *_tensors(module)) for name, module in layer.named_modules())


def _settings(module: nn.Module) -> tuple[object, ...]:
    """The type and the plain attributes, which hold windows, numbers of heads, scales and the like."""
    plain = (
        (name, value)
        for name, value in sorted(vars(module).items())
        if isinstance(value, bool | int | float | str | None) and name not in _PLACE
    )
    return (type(module).__qualname__, *plain)


def _tensors(module: nn.Module) -> tuple[object, ...]:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return tuple((name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in own)
