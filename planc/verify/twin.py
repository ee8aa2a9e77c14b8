"""Check that a small model is of the same kind as a large one, and map their module names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from planc.inventory.small_config import Config
from planc.vocab import outwards

_MAX_PARAMETERS = 20_000_000
_LARGE = 512
_PLACE = ("layer_idx", "layer_index", "layer_id")
"""Attributes for a layer's position, which do not affect what it computes."""


class CannotShrink(ValueError):
    """A model that has no small twin; names the field of its config.json that prevents it."""


def require_twin(
    model: nn.Module, short: nn.Module, renamed: Mapping[str, str], config: Config, small: Config
) -> None:
    """CannotShrink unless each kept layer is of the kind that it was, and the sizes are small."""
    per_layer = [
        name
        for name, value in config.items()
        if "layer" in name and name != "num_hidden_layers" and value not in (None, [], {}, 0, False)
    ]
    for old, new in renamed.items():
        if _nature(model.get_submodule(old)) != _nature(short.get_submodule(new)):
            raise CannotShrink(
                f"{old} is of a different kind in a model of {len(renamed)} layers; "
                f"the kinds depend on {', '.join(per_layer) or 'the number of layers'}"
            )
    num_parameters = sum(parameter.numel() for parameter in short.parameters())
    if num_parameters > _MAX_PARAMETERS:
        large = ", ".join(f"{name} = {value}" for name, value in _large(small))
        raise CannotShrink(f"planc does not know how to shrink {large or 'this architecture'}")


def _large(config: Config) -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if isinstance(value, int) and not isinstance(value, bool) and value >= _LARGE:
            yield name, value


def _nature(layer: nn.Module) -> frozenset[tuple[object, ...]]:
    """Return the nature of a layer, apart from its sizes: types, options, and which numbers it has at all."""
    return frozenset(
        (re.sub(r"\.\d+(?=\.|$)", ".*", name), *_choices(module)) for name, module in layer.named_modules()
    )


def _choices(module: nn.Module) -> tuple[object, ...]:
    own = sorted((name, value) for name, value in vars(module).items() if name not in _PLACE)
    plain = (
        (name, value if isinstance(value, bool | str | None) else "a number")
        for name, value in own
        if isinstance(value, bool | str | int | float | None)
    )
    return (type(module).__qualname__, *plain, *(name for name, _ in module.named_parameters(recurse=False)))


def names_of(model: nn.Module) -> frozenset[str]:
    """Modules and parameters, tied ones by every name."""
    parameters = (name for name, _ in model.named_parameters(remove_duplicate=False))
    buffers = (name for name, _ in model.named_buffers())
    return frozenset((*(name for name, _ in model.named_modules()), *parameters, *buffers))


@dataclass(frozen=True, slots=True)
class Renaming:
    """A map from the whole model's names to the small one's: `kept` maps layers, `names` are the latter's."""

    layers: frozenset[str]
    kept: Mapping[str, str]
    names: frozenset[str]

    def of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names in the small model, in order. CannotShrink for a missing one."""
        found = (self._of(name) for name in names)
        return tuple(name for name in found if name is not None)

    def _of(self, name: str) -> str | None:
        layer = min((around for around in outwards(name) if around in self.layers), key=len, default=None)
        if layer is not None:
            if layer not in self.kept:
                return None
            name = self.kept[layer] + name.removeprefix(layer)
        if name in self.names:
            return name
        # Only a few experts of a list are kept.
        if layer is not None and re.search(r"\.\d+(?=\.|$)", name.removeprefix(self.kept[layer])):
            return None
        raise CannotShrink(f"a smaller model does not have {name}")
