"""Whether the shares of an attention add up to the whole, tried with numbers. Imports torch, for the probe.

Rank r has the r-th block of rows of every linear layer but the last, and that block of columns of the last.
The sum over ranks of the last layer's output, and of the gradients of everything that enters the attention,
must equal the whole's. Some integer attributes of the code become those of one rank; nothing else changes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LIMITS: Mapping[torch.dtype, float] = {torch.float64: 1e-9, torch.float32: 1e-5}
"""The relative error at which shares add up. A wrong attribute is off by a tenth and more."""
_MAX_ATTRIBUTES, _MAX_TRIALS = 3, 200
"""The most attributes that change together, and the most sets of them that are tried."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an attention, with real weights and inputs."""

    attention: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Counts:
    """The attributes to divide, as paths from the attention, and the linear layers that were shared."""

    attributes: tuple[str, ...]
    first: tuple[str, ...]
    """The layers that share their output features."""
    last: str
    """The layer that shares its input features."""


def find_counts(call: Call, *, shares: Sequence[int], dtype: torch.dtype) -> Counts | None:
    """The smallest set of attributes with which the shares of `shares` ranks add up; None without one.

    None also if several sets of one size do, because nothing shows which of them the code means.
    """
    order = _linear_order(call)
    if order is None:
        return None
    *first, last = order
    trial = _Trial(call, tuple(first), last, LIMITS[dtype])
    if not trial.is_possible(shares):
        return None
    names = tuple(_attributes(call.attention, shares))
    num_trials = 0
    for size in range(min(_MAX_ATTRIBUTES, len(names)) + 1):
        found = []
        for attributes in itertools.combinations(names, size):
            num_trials += 1
            if num_trials > _MAX_TRIALS:
                return None
            if all(trial.adds_up(attributes, share) for share in shares):
                found.append(attributes)
        if found:
            return Counts(found[0], tuple(first), last) if len(found) == 1 else None
    return None


def _linear_order(call: Call) -> tuple[str, ...] | None:
    """The linear layers in the order of their calls; None if one runs twice, or others have matrices."""
    order: list[str] = []
    linears = {name: one for name, one in call.attention.named_modules() if isinstance(one, nn.Linear)}
    matrices = (
        name
        for name, one in call.attention.named_modules()
        for parameter in one.parameters(recurse=False)
        if parameter.ndim > 1
    )
    if any(name not in linears for name in matrices):
        return None
    handles = [
        one.register_forward_hook(lambda *_, name=name: order.append(name)) for name, one in linears.items()
    ]
    with _removed(handles):
        _run(call, call.arguments, call.keywords)
    return tuple(order) if sorted(order) == sorted(linears) and len(order) > 1 else None


def _attributes(attention: nn.Module, shares: Sequence[int]) -> Iterator[str]:
    """Paths of the integers that every number of ranks divides."""
    for path, module in attention.named_modules():
        if isinstance(module, nn.Linear):
            continue
        for name, value in vars(module).items():
            is_count = type(value) is int and value > 1 and not name.startswith("_")
            if is_count and all(value % share == 0 for share in shares):
                yield f"{path}.{name}" if path else name


@dataclass(slots=True)
class _Trial:
    call: Call
    first: tuple[str, ...]
    last: str
    limit: float
    _expected: tuple[Tensor, ...] = ()

    def is_possible(self, shares: Sequence[int]) -> bool:
        """Whether ranks can have equal blocks, and the whole can be computed and depends on its inputs."""
        sizes = [self._linear(name).out_features for name in self.first]
        sizes.append(self._linear(self.last).in_features)
        if any(size % share for size in sizes for share in shares):
            return False
        try:
            self._expected = self._values()
        except Exception:  # a model's own code may raise anything in a dtype that it does not expect
            return False
        return all(bool(one.isfinite().all()) for one in self._expected) and len(self._expected) > 1

    def adds_up(self, attributes: Sequence[str], share: int) -> bool:
        """Whether the outputs and gradients of all ranks, with their own attributes, sum to the whole."""
        total: tuple[Tensor, ...] = ()
        with divided(self.call.attention, attributes, by=share):
            for rank in range(share):
                try:
                    with self._share_of(rank, share):
                        values = self._values()
                except Exception:  # views of other sizes, in a model's own code
                    return False
                if [one.shape for one in values] != [one.shape for one in self._expected]:
                    return False
                total = tuple(map(torch.add, total, values)) if total else values
        return all(_error(*pair) <= self.limit for pair in zip(total, self._expected, strict=True))

    def _linear(self, name: str) -> nn.Linear:
        found = self.call.attention.get_submodule(name)
        assert isinstance(found, nn.Linear), f"{name} was recorded as a linear layer"
        return found

    def _values(self) -> tuple[Tensor, ...]:
        """The last layer's output, and the gradient of every tensor that enters the attention."""
        leaves: list[Tensor] = []

        def as_leaf(value: Tensor) -> Tensor:
            if not value.is_floating_point():
                return value
            leaves.append(value.detach().clone().requires_grad_())
            return leaves[-1]

        arguments = _mapped(self.call.arguments, as_leaf)
        keywords = _mapped(dict(self.call.keywords), as_leaf)
        outputs: list[Tensor] = []
        # Behind the last layer, code may add what every rank has whole.
        handle = self._linear(self.last).register_forward_hook(lambda _, __, out: outputs.append(out))
        with _removed([handle]):
            _run(self.call, arguments, keywords)
        (output,) = outputs
        generator = torch.Generator().manual_seed(1)
        weights = torch.randn(output.shape, generator=generator, dtype=output.dtype)
        gradients = torch.autograd.grad(output, leaves, weights, allow_unused=True)
        reached = (one for one in gradients if one is not None)
        return (output.detach(), *reached)

    @contextlib.contextmanager
    def _share_of(self, rank: int, share: int) -> Iterator[None]:
        """Inside, the linear layers have the weights of one rank."""
        kept = {name: dict(self._linear(name)._parameters) for name in (*self.first, self.last)}
        for name, parameters in kept.items():
            weight: Tensor | None = parameters["weight"]
            bias: Tensor | None = parameters["bias"]
            assert weight is not None, "every linear layer has a weight"
            if name == self.last:
                weight = weight.chunk(share, dim=1)[rank]
                bias = bias if bias is None or rank == 0 else torch.zeros_like(bias)
            else:
                weight = weight.chunk(share)[rank]
                bias = bias if bias is None else bias.chunk(share)[rank]
            shard = {"weight": weight, "bias": bias}
            own = self._linear(name)._parameters
            own.update({key: None if one is None else nn.Parameter(one) for key, one in shard.items()})
        try:
            yield
        finally:
            for name, parameters in kept.items():
                self._linear(name)._parameters.update(parameters)


@contextlib.contextmanager
def divided(attention: nn.Module, attributes: Sequence[str], *, by: int) -> Iterator[None]:
    """Inside, the attributes at these paths are divided by a number of ranks."""
    kept: list[tuple[nn.Module, str, int]] = []
    for path in attributes:
        owner, _, name = path.rpartition(".")
        module = attention.get_submodule(owner)
        kept.append((module, name, getattr(module, name)))
        setattr(module, name, kept[-1][2] // by)
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def _run(call: Call, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    call.attention(*arguments, **keywords)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A nest of containers with other tensors in it."""
    match value:
        case Tensor():
            return change(value)
        case dict():
            return {key: _mapped(item, change) for key, item in value.items()}
        case tuple() | list():
            return type(value)([_mapped(item, change) for item in value])
        case _:
            return value


def _error(actual: Tensor, expected: Tensor) -> float:
    """The relative distance of two tensors."""
    distance, norm = float((actual - expected).norm()), float(expected.norm())
    found = distance / norm if norm else distance
    return found if math.isfinite(found) else math.inf


@contextlib.contextmanager
def _removed(handles: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
