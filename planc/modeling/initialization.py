"""A model's own initialisation: drawn module by module, and what it leaves as it was. Imports torch."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from planc.modeling.tensor_dtypes import default_dtype, floating_tensors, set_dtypes

_SMALL_TENSOR = 2**16
"""Numbers: norms, scales and biases, which take no time to draw."""


def fresh_copy(model: nn.Module) -> PreTrainedModel:
    """The model as it was built: whole, on meta, with every tensor in the dtype that the model has it in."""
    # A cast of the whole would round what the model's own code makes in float32, as rotary frequencies.
    assert isinstance(model, PreTrainedModel), "a plan's model is of transformers"
    with torch.device("meta"), default_dtype(model.config.dtype):
        copy: PreTrainedModel = type(model)(model.config)
    set_dtypes(copy, {name: tensor.dtype for name, tensor in floating_tensors(model).items()})
    return copy


def draw(
    pristine: nn.Module,
    *,
    seed: int,
    keep: Callable[[str, Tensor], None],
    of: Callable[[nn.Module], bool] = lambda module: True,
) -> None:
    """Initialises a fresh copy of a model on the CPU, module by module; what nothing sets is NaN.

    `keep` gets the name and the values of every parameter and buffer of the modules that are asked for by
    `of`. As in transformers, a module is initialised by the model that holds it, and then by every module
    around it: some set what is in another.
    """
    named = dict(pristine.named_modules())
    for fqn in filter(lambda fqn: of(named[fqn]), named):
        with _drawn(fqn, named, seed=seed) as tensors:
            for name, tensor in tensors.items():
                keep(f"{fqn}.{name}" if fqn else name, tensor)


@contextlib.contextmanager
def _drawn(
    fqn: str, named: Mapping[str, nn.Module], *, seed: int, largest: int | None = None
) -> Iterator[Mapping[str, Tensor]]:
    """A module's own tensors, initialised, while the context lasts: only one module at a time is held whole.

    Those of more than `largest` numbers stay on meta.
    """
    module = named[fqn]
    empty = _own_tensors(module)
    if not empty:
        yield {}
        return
    _set_tensors(module, {name: _unset(tensor, largest=largest) for name, tensor in empty.items()})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for holder in _outwards(fqn):
            # Drawn on the CPU. torch.manual_seed would seed all devices, and take longer than a small tensor.
            torch.default_generator.manual_seed(derived_seed(seed, "init", holder))
            _model_of(holder, named)._init_weights(named[holder])
        yield _own_tensors(module)
    _set_tensors(module, empty)


def _outwards(fqn: str) -> Iterator[str]:
    """A module's name, then those of all modules around it, the root's last."""
    while fqn:
        yield fqn
        fqn = fqn.rpartition(".")[0]
    yield ""


def _model_of(fqn: str, named: Mapping[str, nn.Module]) -> PreTrainedModel:
    """The innermost model of transformers that a module is, or is in."""
    found = (named[holder] for holder in _outwards(fqn))
    return next(module for module in found if isinstance(module, PreTrainedModel))


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a module itself, without its children's."""
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _unset(tensor: Tensor, *, largest: int | None) -> Tensor:
    """A tensor of the same shape, every number of which shows that it is not set."""
    if largest is not None and tensor.numel() > largest:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.full(tensor.shape, torch.nan if tensor.is_floating_point() else 0, dtype=tensor.dtype)


def _set_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replaces a module's tensors by name. A parameter is put back itself, as others may be tied to it."""
    for name, tensor in tensors.items():
        if name in module._parameters and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, tensor.is_floating_point())
        setattr(module, name, tensor)


def small_buffers(pristine: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """The small buffers of a fresh copy on meta, each with the values that it is initialised with."""
    named = dict(pristine.named_modules())
    for fqn, module in named.items():
        buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
        if not buffers:
            continue
        with _drawn(fqn, named, seed=0, largest=_SMALL_TENSOR) as tensors:
            found = [(buffer, tensors[name].clone()) for name, buffer in buffers.items()]
        yield from ((buffer, value) for buffer, value in found if not value.is_meta)


def is_unset(tensor: Tensor) -> bool:
    """Whether an initialisation that should have drawn a tensor left it, or part of it, as it was."""
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def unset_tensors(pristine: nn.Module) -> tuple[str, ...]:
    """Parameters and buffers that a model's own initialisation leaves unset, of a fresh copy on meta.

    Small ones are judged by their values; of large ones it is seen whether anything writes to them at all.
    Modules of the same name, type and shapes in other layers are taken to be alike.
    """
    named = dict(pristine.named_modules())
    left: dict[object, tuple[str, ...]] = {}
    found: list[str] = []
    for fqn in named:
        kind = _kind(fqn, named)
        if kind not in left:
            left[kind] = tuple(_left_by(fqn, named))
        found.extend(f"{fqn}.{name}" if fqn else name for name in left[kind])
    return tuple(found)


def _kind(fqn: str, named: Mapping[str, nn.Module]) -> object:
    """What is equal for modules that are initialised alike."""
    name = tuple("*" if part.isdecimal() else part for part in fqn.split("."))
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in _own_tensors(named[fqn]).items())
    return name, tuple(type(named[holder]) for holder in _outwards(fqn)), shapes


def _left_by(fqn: str, named: Mapping[str, nn.Module]) -> Iterator[str]:
    """The local names of a module's tensors that nothing sets."""
    with (writes := _Writes()), _drawn(fqn, named, seed=0, largest=_SMALL_TENSOR) as tensors:
        for name, tensor in tensors.items():
            is_left = not writes.reached(tensor) if tensor.is_meta else is_unset(tensor)
            if tensor.is_floating_point() and is_left:
                yield name


class _Writes(TorchFunctionMode):
    """Notes the storages that functions write to; they are kept alive, since their addresses are the keys."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[int, torch.UntypedStorage] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        versions = [tensor._version for tensor in tensors]
        result = func(*args, **(kwargs or {}))
        for tensor, version in zip(tensors, versions, strict=True):
            if tensor._version != version:
                storage = tensor.untyped_storage()
                self._written[storage._cdata] = storage
        return result

    def reached(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._written


def derived_seed(seed: int, *parts: object) -> int:
    """A 63-bit seed from a plan's seed and what it is for: the same in every process, for ever."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
