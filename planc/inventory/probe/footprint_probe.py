"""The memory that activation functions, norms and experts' gates take for backward, by running them. Imports
torch.

Some are one operation, which keeps one tensor; others are written out in several, and keep more.
transformers' `gelu_new` keeps its input, a tanh and both factors of its last product. Norms differ, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from planc.inventory.footprint import Footprint
from planc.inventory.probe.kinds import Linear, out_features
from planc.modeling.private import TorchDispatchMode, tree_leaves

_NUM_TOKENS, _FEATURES = (2, 4), 64
"""The shape of the tensor that a function is run on. What has fewer elements, as scalars and a number for
each vector, is ignored, as small."""
_MOST_FEATURES = 2**17
"""The widest norm that is run; no model is as wide, and a wrong config could take all memory."""
_MAX_OWN = 16
"""Elements of parameters that an activation function may own, such as its slopes."""


def watch_activations(
    named: Mapping[str, nn.Module],
    sources: Callable[[object], frozenset[str]],
    functions: dict[str, nn.Module],
) -> None:
    """Fill `functions` while the model runs: by linear layer, the activation function that reads its output.

    `sources` gives the modules that reached a tensor.
    """
    widths = {fqn: out_features(module) for fqn, module in named.items() if isinstance(module, Linear)}

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        if len(args) != 1 or not isinstance(args[0], Tensor):
            return
        layers, width = sources(args[0]), args[0].shape[-1]
        # Half of the output, where one layer makes a gate and its factor.
        if len(layers) == 1 and widths.get(layer := next(iter(layers))) in (width, 2 * width):
            functions[layer] = module

    for module in named.values():
        if _may_be_activation(module):
            module.register_forward_pre_hook(enter)


def footprints(activations: Mapping[str, nn.Module]) -> dict[str, Footprint]:
    """The footprint of each layer's activation function, where it can be measured."""
    return _of_each(activations, footprint_of)


def norm_footprints(norms: Mapping[str, nn.Module]) -> dict[str, Footprint]:
    """The footprint of each norm, where it can be measured."""

    def width(norm: nn.Module) -> int:
        return max(one.numel() for one in norm.parameters(recurse=False))

    found = {fqn: one for fqn, one in norms.items() if width(one) <= _MOST_FEATURES}
    return _of_each(found, lambda one: footprint_of(one, width(one)), width)


def gate_footprints(experts: Mapping[str, nn.Module]) -> dict[str, Footprint]:
    """The footprint of each gate between stacks of experts, where it can be measured.

    It makes a gate and its factor, which the first stack computes as one tensor, into half of the features.
    """
    gated = {fqn: one for fqn, one in experts.items() if getattr(one, "has_gate", False)}
    return _of_each(gated, gate_footprint_of)


def footprint_of(module: nn.Module, num_features: int = _FEATURES) -> Footprint | None:
    """The footprint of a function of one tensor; None if it can't be run, or changes the tensor's shape."""
    return _footprint(partial(_in_training, module), (*_NUM_TOKENS, num_features), num_features)


def gate_footprint_of(experts: nn.Module) -> Footprint | None:
    """The footprint of transformers' `_apply_gate`, which most experts share, and some write themselves."""
    gate: Any = experts._apply_gate
    return _footprint(lambda _: gate, (prod(_NUM_TOKENS), _FEATURES), _FEATURES // 2)


def _footprint(
    function: Callable[[torch.dtype], Callable[[Tensor], Tensor]], shape: tuple[int, ...], num_outputs: int
) -> Footprint | None:
    """The footprint of a function by its dtype, which makes its tensor's last dimension `num_outputs`."""
    try:
        narrow, wide = (
            _measured(function(dtype), dtype, shape, num_outputs) for dtype in (torch.bfloat16, torch.float32)
        )
    except Exception:  # a model's own code may raise anything
        return None
    return Footprint(kept=(narrow[0], wide[0]), passing=(narrow[1], wide[1]))


def _of_each(
    modules: Mapping[str, nn.Module],
    measure: Callable[[nn.Module], Footprint | None],
    width: Callable[[nn.Module], int] = lambda _: _FEATURES,
) -> dict[str, Footprint]:
    by_code: dict[tuple[type[nn.Module], str, int], Footprint | None] = {}
    footprints: dict[str, Footprint] = {}
    for fqn, module in modules.items():
        key = type(module), repr(module), width(module)
        if key not in by_code:
            by_code[key] = measure(module)
        if (footprint := by_code[key]) is not None:
            footprints[fqn] = footprint
    return footprints


def _may_be_activation(module: nn.Module) -> bool:
    """Whether a module has no parts, and no weights."""
    if any(True for _ in module.children()) or isinstance(module, Linear | nn.Embedding | nn.Dropout):
        return False
    return sum(parameter.numel() for parameter in module.parameters(recurse=False)) <= _MAX_OWN


def _measured(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, shape: tuple[int, ...], num_outputs: int
) -> tuple[int, int]:
    """Bytes for each element: kept for backward, and held in addition while that runs."""
    with torch.device("cpu"), torch.enable_grad():
        leaf = torch.ones(shape, dtype=dtype, requires_grad=True)
        factor = torch.ones(*shape[:-1], num_outputs, dtype=dtype)
        kept = _kept(function, leaf.clone(), factor)
        with _Storages(factor.numel()) as storages:
            total = _continued(function(leaf.clone()), factor, storages)
            torch.autograd.grad(total, leaf)
    return kept // leaf.numel(), (storages.peak - kept) // leaf.numel()


def _kept(function: Callable[[Tensor], Tensor], value: Tensor, factor: Tensor) -> int:
    """Bytes that a forward saves in addition to its output, which has the shape of `factor`."""
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        output = function(value)
    if output.shape != factor.shape:
        raise ValueError("not elementwise")
    found = {one._cdata: one.nbytes() for one in _storages(saved, factor.numel())}
    found.pop(output.untyped_storage()._cdata, None)
    return sum(found.values())


def _continued(output: Tensor, factor: Tensor, storages: _Storages) -> Tensor:
    """A sum whose backward makes the gradient of `output`, from which on `storages` measures."""
    output.register_hook(lambda _: storages.begin())  # type: ignore[no-untyped-call]
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

    def __init__(self, num_elements: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._num_elements = num_elements
        self._live: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._has_begun = False

    def begin(self) -> None:
        self._has_begun = True
        self._update()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result, self._num_elements):
            key = storage._cdata
            if key not in self._live:
                reference = weakref.ref(storage, partial(self._forget, key))
                self._live[key] = storage.nbytes(), reference
        self._update()
        return result

    def _forget(self, key: int, _: object) -> None:
        del self._live[key]

    def _update(self) -> None:
        if self._has_begun:
            self.peak = max(self.peak, sum(num_bytes for num_bytes, _ in self._live.values()))


def _storages(tensors: object, num_elements: int) -> Iterator[torch.UntypedStorage]:
    """The storages of at least so many elements."""
    for leaf in tree_leaves(tensors):
        if isinstance(leaf, Tensor):
            storage = leaf.untyped_storage()
            if storage.nbytes() >= num_elements * leaf.element_size():
                yield storage
