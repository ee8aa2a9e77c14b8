"""The memory that an activation function takes for its backward, by running it. Imports torch.

Some are one operation, which keeps one tensor; others are written out in several, and keep more: transformers'
`gelu_new` keeps its input, a tanh and both factors of its last product.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from planc.inventory.probe.kinds import Linear, out_features
from planc.inventory.schema import ONE_OPERATION, Footprint
from planc.modeling.private import TorchDispatchMode, tree_leaves

_SHAPE = (2, 4, 64)
"""Of the tensor that a function is run on. Scalars and numbers for each vector are ignored, as small."""
_NUM_ELEMENTS = 2 * 4 * 64
_MAX_OWN = 16
"""Elements of parameters that an activation function may own, such as its slopes."""


def watch_activations(
    named: Mapping[str, nn.Module], sources: Callable[[object], frozenset[str]], found: dict[str, nn.Module]
) -> None:
    """Fill `found` while the model runs: the activation function that reads a linear layer's output, by layer.

    `sources` gives the modules that reached a tensor.
    """
    widths = {fqn: out_features(module) for fqn, module in named.items() if isinstance(module, Linear)}

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        if len(args) != 1 or not isinstance(args[0], Tensor):
            return
        layers = sources(args[0])
        if len(layers) == 1 and (layer := next(iter(layers))) in widths:
            # A part of the output, where a layer has a gate and its factor.
            if widths[layer] in (args[0].shape[-1], 2 * args[0].shape[-1]):
                found[layer] = module

    for module in named.values():
        if _may_be_activation(module):
            module.register_forward_pre_hook(enter)


def footprints(activations: Mapping[str, nn.Module]) -> dict[str, Footprint]:
    """The footprint of each layer's activation function, where it is not that of one operation."""
    by_code: dict[tuple[type[nn.Module], str], Footprint | None] = {}
    found: dict[str, Footprint] = {}
    for fqn, module in activations.items():
        key = type(module), repr(module)
        if key not in by_code:
            by_code[key] = footprint_of(module)
        footprint = by_code[key]
        if footprint is not None and footprint != ONE_OPERATION:
            found[fqn] = footprint
    return found


def footprint_of(module: nn.Module) -> Footprint | None:
    """The footprint of a function of one tensor; None if it can't be run, or is not elementwise."""
    try:
        narrow, wide = (_measured(module, dtype) for dtype in (torch.bfloat16, torch.float32))
    except Exception:  # a model's own code may raise anything
        return None
    return Footprint(kept=(narrow[0], wide[0]), passing=(narrow[1], wide[1]))


def _may_be_activation(module: nn.Module) -> bool:
    """Whether a module has no parts, and no weights."""
    if any(True for _ in module.children()) or isinstance(module, Linear | nn.Embedding | nn.Dropout):
        return False
    return sum(parameter.numel() for parameter in module.parameters(recurse=False)) <= _MAX_OWN


def _measured(module: nn.Module, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes for each element: kept for backward, and held in addition while that runs."""
    with torch.device("cpu"), torch.enable_grad():
        function = _in_training(module, dtype)
        leaf, factor = torch.ones(_SHAPE, dtype=dtype, requires_grad=True), torch.ones(_SHAPE, dtype=dtype)
        kept = _kept(function, leaf.clone())
        with _Storages() as storages:
            total = _continued(function(leaf.clone()), factor, storages)
            torch.autograd.grad(total, leaf)
    return kept, storages.peak // _NUM_ELEMENTS - kept


def _kept(function: Callable[[Tensor], Tensor], value: Tensor) -> int:
    """Bytes an element that a forward saves in addition to its output."""
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        output = function(value)
    if output.shape != value.shape:
        raise ValueError("not elementwise")
    found = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}
    found.pop(output.untyped_storage()._cdata, None)
    return sum(num_bytes for num_bytes in found.values() if num_bytes >= _NUM_ELEMENTS) // _NUM_ELEMENTS


def _continued(output: Tensor, factor: Tensor, storages: _Storages) -> Tensor:
    """A sum whose backward makes the gradient of `output`, from which on `storages` measures."""
    output.register_hook(lambda _: storages.begin())
    return (output * factor).sum()


def _in_training(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A module's forward as in training, without its hooks; parameters and buffers, all without values so
    far, are ones."""
    tried: nn.Module = type(module).__new__(type(module))
    vars(tried).update(vars(module))
    tried.training = True
    tried._parameters = {
        name: None if one is None else nn.Parameter(torch.ones(one.shape, dtype=dtype))
        for name, one in module._parameters.items()
    }
    tried._buffers = {
        name: None if one is None else torch.ones(one.shape, dtype=dtype)
        for name, one in module._buffers.items()
    }
    forward: Callable[[Tensor], Tensor] = tried.forward
    return forward


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what ops create under it: `peak` is the most that was held since `begin`, in bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._has_begun = False

    def begin(self) -> None:
        self._has_begun = True
        self._update()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            key = storage._cdata
            if key not in self._live and storage.nbytes() >= _NUM_ELEMENTS:
                reference = weakref.ref(storage, partial(self._forget, key))
                self._live[key] = storage.nbytes(), reference
        self._update()
        return result

    def _forget(self, key: int, _: object) -> None:
        del self._live[key]

    def _update(self) -> None:
        if self._has_begun:
            self.peak = max(self.peak, sum(num_bytes for num_bytes, _ in self._live.values()))


def _storages(result: object) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor):
            yield leaf.untyped_storage()
