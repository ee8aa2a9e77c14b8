"""A model's own initialization, module by module, and the tensors that it leaves unset. Imports torch."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from planc.modeling.placed_draws import (
    Draws,
    KeyOf,
    NotInPartsError,
    Recording,
    RepeatedDraws,
    Values,
    Whole,
    is_unset,
    replaced_truncation,
    whole_values,
)
from planc.modeling.private import tree_leaves
from planc.modeling.tasks import head_options
from planc.modeling.tensor_dtypes import default_dtype, floating_tensors, set_dtypes

_Mode = TypeVar("_Mode", bound=Draws)
_SMALL_TENSOR = 2**16
"""Elements: norms, scales and biases, which take no time to draw."""


def fresh_copy(model: nn.Module) -> PreTrainedModel:
    """The model as it was built: whole, on meta, with every tensor in its dtype in the model."""
    # A cast of the whole would round tensors that the model's code builds in float32, as rotary frequencies.
    assert isinstance(model, PreTrainedModel), "a plan's model is one of transformers"
    with torch.device("meta"), default_dtype(model.config.dtype):
        copy: PreTrainedModel = type(model)(model.config, **head_options(type(model)))
    set_dtypes(copy, {name: tensor.dtype for name, tensor in floating_tensors(model).items()})
    return copy


def draw(
    pristine: nn.Module,
    *,
    seed: int,
    keep: Callable[[str, Values], object],
    of: Callable[[nn.Module], bool] = lambda module: True,
) -> tuple[str, ...]:
    """Initialize a fresh copy of a model on the CPU, module by module.

    `keep` gets the name and the values of every parameter and buffer of the modules that `of` selects. As in
    transformers, a module is initialized by the model that contains it, and then by every module around it:
    some set the tensors of another. Returns the large tensors that were drawn whole, because their
    initialization computes with what it draws.
    """
    named = dict(pristine.named_modules())
    drawn_whole: list[str] = []
    for fqn in filter(lambda fqn: of(named[fqn]), named):
        for name, values in _values(fqn, named, seed=seed).items():
            whole_name = f"{fqn}.{name}" if fqn else name
            keep(whole_name, values)
            if values.num_computed() > _SMALL_TENSOR:
                drawn_whole.append(whole_name)
    return tuple(drawn_whole)


def _values(fqn: str, named: Mapping[str, nn.Module], *, seed: int) -> Mapping[str, Values]:
    """The values of a module's own tensors, in parts if its initialization permits it."""
    try:
        with _drawn(fqn, named, seed=seed, make=_untouched, mode=Recording) as (_, recording):
            return recording.values() if recording is not None else {}
    except NotInPartsError:
        with _drawn(fqn, named, seed=seed, make=_unset, mode=Whole) as (tensors, _):
            return {name: whole_values(tensor) for name, tensor in tensors.items()}


@contextlib.contextmanager
def _drawn(
    fqn: str,
    named: Mapping[str, nn.Module],
    *,
    seed: int,
    mode: Callable[[Mapping[str, Tensor], KeyOf], _Mode],
    make: Callable[[Tensor], Tensor],
) -> Iterator[tuple[Mapping[str, Tensor], _Mode | None]]:
    """Inside, a module's own tensors are initialized.

    `make` allocates memory for one that is on meta, and `mode` makes its draws.
    """
    module = named[fqn]
    empty = _own_tensors(module)
    if not empty:
        yield {}, None
        return
    _set_tensors(module, {name: make(tensor) for name, tensor in empty.items()})
    inside = f"{fqn}." if fqn else ""
    draws = mode(_own_tensors(module), lambda name, number: derived_seed(seed, "init", inside + name, number))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), replaced_truncation(draws), draws:
            for holder in _outwards(fqn):
                # Seeds values that are drawn apart from the tensors, such as those that are copied to one. On
                # the CPU: torch.manual_seed would seed all devices, and take longer than a small tensor.
                torch.default_generator.manual_seed(derived_seed(seed, "init", holder))
                model = _model_of(holder, named)
                if not hasattr(model, "_planc_own"):
                    _reset(named[holder])
                model._init_weights(named[holder])
        yield _own_tensors(module), draws
    finally:
        _set_tensors(module, empty)


_LIBRARIES = ("torch", "transformers", "planc")


def _reset(module: nn.Module) -> None:
    """Initialize a module of a plan's own code, which the method of a class of transformers does not know."""
    reset = getattr(module, "reset_parameters", None)
    if callable(reset) and type(module).__module__.partition(".")[0] not in _LIBRARIES:
        reset()


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


def _unset(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, whose elements are all marked as unset."""
    return torch.full(tensor.shape, torch.nan if tensor.is_floating_point() else 0, dtype=tensor.dtype)


def _unset_if_small(tensor: Tensor) -> Tensor:
    return _untouched(tensor, device="meta") if tensor.numel() > _SMALL_TENSOR else _unset(tensor)


def _untouched(tensor: Tensor, *, device: str = "cpu") -> Tensor:
    """A tensor of the same shape. Memory that nothing writes to takes no room on a CPU, either."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _set_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace a module's tensors by name. A parameter object is kept, because others may be tied to it."""
    for name, tensor in tensors.items():
        if name in module._parameters and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, tensor.is_floating_point())
        setattr(module, name, tensor)


def started(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The initial values of each tensor of a small model, by name, with `RepeatedDraws`."""
    named = dict(model.named_modules())
    for fqn in named:
        with _drawn(fqn, named, seed=0, make=_unset, mode=RepeatedDraws) as (tensors, _):
            values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        yield from ((f"{fqn}.{name}" if fqn else name, value) for name, value in values.items())


def small_buffers(pristine: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """The small buffers of a fresh copy on meta, each with its initial values."""
    named = dict(pristine.named_modules())
    for fqn, module in named.items():
        buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
        if not buffers:
            continue
        with _drawn(fqn, named, seed=0, make=_unset_if_small, mode=Whole) as (tensors, _):
            found = [(buffer, tensors[name].clone()) for name, buffer in buffers.items()]
        yield from ((buffer, value) for buffer, value in found if not value.is_meta)


def unset_tensors(pristine: nn.Module) -> tuple[str, ...]:
    """Parameters and buffers of a fresh copy on meta that the model's own initialization leaves unset.

    Small ones are judged by their values; for large ones, by whether anything writes to them at all. Modules
    of the same name, type and shapes in other layers are assumed to be equal.
    """
    named = dict(pristine.named_modules())
    left: dict[object, tuple[str, ...]] = {}
    unset: list[str] = []
    for fqn in named:
        kind = _kind(fqn, named)
        if kind not in left:
            left[kind] = tuple(_left_by(fqn, named))
        unset.extend(f"{fqn}.{name}" if fqn else name for name in left[kind])
    return tuple(unset)


def _kind(fqn: str, named: Mapping[str, nn.Module]) -> object:
    """A key that is equal for modules that are initialized in the same way."""
    name = tuple("*" if part.isdecimal() else part for part in fqn.split("."))
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in _own_tensors(named[fqn]).items())
    return name, tuple(type(named[holder]) for holder in _outwards(fqn)), shapes


def _left_by(fqn: str, named: Mapping[str, nn.Module]) -> Iterator[str]:
    """The local names of a module's tensors that nothing sets."""
    with (writes := _Writes()), _drawn(fqn, named, seed=0, make=_unset_if_small, mode=Whole) as (tensors, _):
        for name, tensor in tensors.items():
            is_left = not writes.reached(tensor) if tensor.is_meta else is_unset(tensor)
            if tensor.is_floating_point() and is_left:
                yield name


class _Writes(TorchFunctionMode):
    """Records the storages that functions write to, and keeps them alive: their addresses are the keys."""

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
    """A 63-bit seed from a plan's seed and its purpose: the same in every process and release."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
