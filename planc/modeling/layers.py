"""The layers of a model, and what tells them apart. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_PLACE = ("layer_idx", "layer_index", "layer_id")
"""Attributes for a layer's position, which do not affect what it computes."""


def layer_lists(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """The outermost module lists: the experts of a layer are part of that layer."""
    found: list[str] = []
    for fqn, module in model.named_modules():
        is_inner = any(fqn.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and not is_inner:
            found.append(fqn)
            yield fqn, module


def nature(layer: nn.Module) -> tuple[object, ...]:
    """What a layer is: types, settings, shapes and dtypes of everything in it, without its position."""
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
