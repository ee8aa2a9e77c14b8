"""Follows values through a model: which modules' outputs reach a tensor. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FRESH = frozenset(
    f"{stem}_like" for stem in ("zeros", "ones", "empty", "full", "rand", "randn", "randint")
) | frozenset(f"new_{stem}" for stem in ("zeros", "ones", "empty", "full"))
"""Functions that take a tensor only as the template of a new one."""

_CASTS = frozenset(("to", "type_as"))
"""Functions that take their second tensor only for its dtype and device."""

_PLAIN = (str, int, float, type(None), torch.dtype, torch.device)
"""Most of what functions take other than tensors: a check for the abstract `Mapping` takes longer."""


class SourceTracker(TorchFunctionMode):
    """Follows through every torch function which modules' outputs reached a tensor.

    Sources belong to a view's base, so a write through one view is seen through the others. Tensors are
    kept alive: their identities are the keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[int, tuple[Tensor, frozenset[str]]] = {}
        self._watched: dict[int, list[Callable[[], None]]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        inputs = {id(base): base for base in _bases(args[:1] if name in _CASTS else (args, kwargs))}
        versions = {key: base._version for key, base in inputs.items()}
        result = func(*args, **(kwargs or {}))
        if name == "__get__" and not isinstance(result, Tensor):
            # To read an attribute, such as a shape, uses no value.
            return result
        sources = frozenset() if name in _FRESH else self.sources(tuple(inputs.values()))
        written = [base for key, base in inputs.items() if base._version != versions[key]]
        # A result that is a view of an input has the input's sources already, whatever else was passed.
        fresh = [base for base in _bases(result) if id(base) not in inputs]
        self.mark((written, fresh), sources=sources)
        if name != "__get__" or fresh:
            for use in (use for key in inputs for use in self._watched.pop(key, ())):
                use()
        return result

    def sources(self, value: Any) -> frozenset[str]:
        """The sources of all tensors in `value`, a tensor or a nest of containers."""
        known = (self._sources.get(id(base)) for base in _bases(value))
        return frozenset().union(*(entry[1] for entry in known if entry is not None))

    def by_storage(self) -> Mapping[int, frozenset[str]]:
        """The sources of all tensors, by storage: autograd keeps an alias of a tensor."""
        return {base.untyped_storage()._cdata: sources for base, sources in self._sources.values()}

    def watch(self, value: Any, use: Callable[[frozenset[str]], None]) -> None:
        """Call `use` with a tensor's sources of now, once any function takes it."""
        for base in _bases(value):
            self._watched.setdefault(id(base), []).append(partial(use, self.sources(base)))

    def mark(self, value: Any, *, sources: frozenset[str]) -> None:
        """Give all tensors in `value` these sources and no others."""
        for base in _bases(value):
            self._sources[id(base)] = (base, sources)


def _bases(value: Any) -> list[Tensor]:
    """The tensors in a value, a tensor or a nest of containers; of a view, its base."""
    bases: list[Tensor] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tensor):
            bases.append(item if (base := item._base) is None else base)
        elif isinstance(item, tuple | list):
            waiting.extend(item)
        elif not isinstance(item, _PLAIN) and isinstance(item, Mapping):
            waiting.extend(item.values())
    return bases
