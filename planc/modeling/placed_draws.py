"""A module's initialization in steps that can be applied to any part of its tensors.

`Recording` runs it on tensors whose memory is never touched, and keeps what it would write: constants, random
draws, values that were computed from others, and arithmetic with numbers. `Whole` writes, for initializations
that compute with what they have drawn. The same draws have the same values in both.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from planc.modeling.draws import LEAST, Box, Distribution, Normal, TruncatedNormal, Uniform, fill
from planc.modeling.private import FakeTensor, TorchDispatchMode, tree_leaves

KeyOf = Callable[[str, int], int]
"""The key of a tensor's n-th draw, by the tensor's local name and n from 0."""

_ATEN = torch.ops.aten
_OVERWRITING = (_ATEN.zero_.default, _ATEN.fill_.Scalar)
_WITH_NUMBERS = (
    *(_ATEN.mul_.Tensor, _ATEN.mul_.Scalar, _ATEN.div_.Tensor, _ATEN.div_.Scalar),
    *(_ATEN.add_.Tensor, _ATEN.add_.Scalar, _ATEN.sub_.Tensor, _ATEN.sub_.Scalar, _ATEN.clamp_.default),
)
"""Functions in place, with numbers only: every element's result depends on that element alone, and is rounded
once."""


class NotInPartsError(Exception):
    """An initialization does something that can't be repeated for a part of a tensor."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is written to consecutive elements of a tensor."""

    box: Box
    is_kept: tuple[bool, ...]
    """Whether the view that was written to has it, too, by dimension of the tensor."""
    write: Callable[[Tensor, Box], object]
    """Writes a part of the view, given its place in it."""
    copied: Tensor | None = None

    def apply(self, out: Tensor, block: Box) -> None:
        """Write what falls into `out`, the block of the tensor."""
        held: list[slice | int] = []
        inner: list[slice] = []
        for one, own, is_kept in zip(block, self.box, self.is_kept, strict=True):
            first, last = max(one.start, own.start), min(one.stop, own.stop)
            if first >= last:
                return
            held.append(slice(first - one.start, last - one.start) if is_kept else first - one.start)
            if is_kept:
                inner.append(slice(first - own.start, last - own.start))
        self.write(out[tuple(held)], tuple(inner))


@dataclass(frozen=True, slots=True)
class Values:
    """A tensor's initial values. Nothing is computed before a part is asked for."""

    steps: tuple[Step, ...]

    def fill(self, out: Tensor, block: Box) -> None:
        """Write the elements `block` of the tensor, in its dtype in the model, to `out`."""
        for step in self.steps:
            step.apply(out, block)

    def is_unset(self) -> bool:
        """Whether the initialization leaves an element unset: not written, or not a number."""
        return not self.steps or any(map(is_unset, self._copied()))

    def num_computed(self) -> int:
        """The most elements that every rank computes to copy its part of them."""
        return max((tensor.numel() for tensor in self._copied()), default=0)

    def _copied(self) -> list[Tensor]:
        return [step.copied for step in self.steps if step.copied is not None]


def whole_values(tensor: Tensor) -> Values:
    """The values that a tensor has."""
    everything = tuple(slice(0, size) for size in tensor.shape)
    return Values((Step(everything, (True,) * tensor.dim(), _copying(tensor), tensor),))


def is_unset(tensor: Tensor) -> bool:
    """Whether an initialization left a tensor, or part of it, unset."""
    return tensor.is_floating_point() and bool(tensor.isnan().any())


class Draws(TorchDispatchMode, ABC):  # type: ignore[no-untyped-call]
    """Replaces the random draws of a module's own tensors."""

    def __init__(self, tensors: Mapping[str, Tensor], key_of: KeyOf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensors = tensors
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in tensors.items()}
        self._key_of = key_of
        self._counts = dict.fromkeys(tensors, 0)

    def name_of(self, tensor: Tensor) -> str | None:
        """The own tensor that this is, or is a view of."""
        return self._names.get(tensor.untyped_storage()._cdata)

    @abstractmethod
    def draw(self, name: str, view: Tensor, of: Distribution) -> None:
        """Make a draw of an own tensor, or of a view of it."""

    def next_key(self, name: str) -> int:
        number = self._counts[name]
        self._counts[name] = number + 1
        return self._key_of(name, number)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        of = _distribution(func, args, kwargs or {})
        if of is None or (name := self.name_of(args[0])) is None:
            return self.other(func, args, kwargs or {})
        self.draw(name, args[0], of)
        return args[0]

    def other(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)


class Whole(Draws):  # type: ignore[no-untyped-call]
    """Draws into real tensors, and nothing into those on meta and in a rehearsal, which have no values."""

    def draw(self, name: str, view: Tensor, of: Distribution) -> None:
        if view.is_meta or isinstance(view, FakeTensor):
            return
        everything = tuple(slice(0, size) for size in view.shape)
        fill(view, everything, shape=tuple(view.shape), key=self.next_key(name), of=of)


class RepeatedDraws(Draws):  # type: ignore[no-untyped-call]
    """Makes draws of the same shape and arguments equal, and fills with NaN what nothing has written to."""

    def __init__(self, *_: object) -> None:
        super().__init__({}, lambda name, number: 0)

    def draw(self, name: str, view: Tensor, of: Distribution) -> None:
        raise AssertionError("it has no tensors of its own")

    def other(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.default_generator.manual_seed(0)
        result = func(*args, **kwargs)
        is_empty = func.overloadpacket in (_ATEN.empty, _ATEN.new_empty, _ATEN.empty_like)
        if is_empty and result.is_floating_point() and not result.is_meta:
            result.fill_(torch.nan)
        return result


class Recording(Draws):  # type: ignore[no-untyped-call]
    """Keeps what is written to tensors, and writes nothing. NotInPartsError for all that can't be kept.

    The tensors are not on meta: some initializations leave those out.
    """

    def __init__(self, tensors: Mapping[str, Tensor], key_of: KeyOf) -> None:
        super().__init__(tensors, key_of)
        self._steps: dict[str, list[Step]] = {name: [] for name in tensors}

    def values(self) -> dict[str, Values]:
        """The values of each tensor. An integer that nothing sets is 0."""
        for name, steps in self._steps.items():
            if not steps and not self._tensors[name].is_floating_point():
                self._keep(name, self._tensors[name], lambda out, box: out.zero_())
        return {name: Values(tuple(steps)) for name, steps in self._steps.items()}

    def draw(self, name: str, view: Tensor, of: Distribution) -> None:
        key, shape = self.next_key(name), tuple(view.shape)
        self._keep(name, view, lambda out, box: fill(out, box, shape=shape, key=key, of=of))

    def other(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        own = [leaf for leaf in leaves if self.name_of(leaf) is not None]
        if not own or func.is_view:
            return func(*args, **kwargs)
        if len(own) > 1 or own[0] is not args[0]:
            raise NotInPartsError
        self._write(func, args, kwargs)
        return args[0]

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        view, *others = args
        name = self._names[view.untyped_storage()._cdata]
        tensors = [leaf for leaf in tree_leaves((others, kwargs)) if isinstance(leaf, Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            raise NotInPartsError
        if func == _ATEN.copy_.default:
            source = tensors[0].detach().clone()
            self._keep(name, view, _copying(source.expand(view.shape)), copied=source)
        elif func in _OVERWRITING or (func in _WITH_NUMBERS and self._steps[name]):
            numbers = [_number(other) for other in others]
            self._keep(name, view, lambda out, box: func(out, *numbers, **kwargs))
        else:
            raise NotInPartsError

    def _keep(
        self, name: str, view: Tensor, write: Callable[[Tensor, Box], object], *, copied: Tensor | None = None
    ) -> None:
        if not self._steps[name] and view.numel() != self._tensors[name].numel():
            # What is only written in part must be seen whole, to find elements that nothing sets.
            raise NotInPartsError
        box, is_kept = _box_of(view, self._tensors[name])
        self._steps[name].append(Step(box, is_kept, write, copied))


def _number(argument: Any) -> Any:
    """An argument as a number, also where torch has made a tensor of it."""
    if not isinstance(argument, Tensor):
        return argument
    if argument.dim():
        raise NotInPartsError
    return argument.item()


def _copying(source: Tensor) -> Callable[[Tensor, Box], object]:
    return lambda out, box: out.copy_(source[box])


def _box_of(view: Tensor, whole: Tensor) -> tuple[Box, tuple[bool, ...]]:
    """The elements of a tensor that a view of it has, and by dimension whether the view has it, too.

    NotInPartsError for views that have the elements of no box in their order, such as a transposed one.
    """
    offset, dim = view.storage_offset(), 0
    box, is_kept = [], []
    for size, stride in zip(whole.shape, whole.stride(), strict=True):
        start, offset = divmod(int(offset), stride)
        has_dim = dim < view.dim() and view.stride(dim) == stride and start + view.shape[dim] <= size
        box.append(slice(start, start + (view.shape[dim] if has_dim else 1)))
        is_kept.append(has_dim)
        dim += has_dim
    if dim != view.dim() or math.prod(one.stop - one.start for one in box) != view.numel():
        raise NotInPartsError
    return tuple(box), tuple(is_kept)


def _distribution(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Distribution | None:
    """Return the distribution that an op draws in place; None without one, or with its own generator."""
    if kwargs.get("generator") is not None:
        return None
    if func == _ATEN.normal_.default:
        return _normal(*args[1:])
    if func == _ATEN.uniform_.default:
        return _uniform(*args[1:])
    return None


def _normal(mean: float = 0.0, std: float = 1.0) -> Normal:
    return Normal(mean, std)


def _uniform(low: float = 0.0, high: float = 1.0) -> Uniform:
    return Uniform(low, high)


@contextlib.contextmanager
def replaced_truncation(draws: Draws) -> Iterator[None]:
    """Inside, torch's truncated normal draws are made by `draws`, too.

    torch draws again what falls outside of the bounds, and nothing on meta. All public functions call one.
    """
    functions = vars(torch.nn.init)
    own = functions["_no_grad_trunc_normal_"]

    def drawn(tensor: Tensor, mean: float, std: float, a: float, b: float, generator: Any = None) -> Tensor:
        of, name = TruncatedNormal(mean, std, a, b), draws.name_of(tensor)
        first, last = of.mass()
        if generator is None and name is not None and last - first >= LEAST:
            draws.draw(name, tensor, of)
            return tensor
        result: Tensor = own(tensor, mean, std, a, b, generator=generator)
        return result

    functions["_no_grad_trunc_normal_"] = drawn
    try:
        yield
    finally:
        functions["_no_grad_trunc_normal_"] = own
