"""Whether the shares of an attention add up to the whole, tried with numbers. Imports torch, for the probe.

Rank r has the r-th block of the output features of every linear layer but the last, and that block of the
last's input features. Of a layer that holds several projections in sequence it has the r-th block of each.
The sum over ranks of the last layer's output, and of the gradients of everything that enters the attention,
must equal the whole's. Some integer attributes of the code become those of one rank, and arguments with a
value for each head are cut; nothing else changes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from planc.inventory.head_shares import KvProjection, PerHead
from planc.inventory.probe import trial_shares
from planc.inventory.probe.kinds import Linear, in_features, out_features
from planc.modeling.head_counts import (
    CONFIG,
    IN_CONFIG,
    Heads,
    Parts,
    Share,
    cut_arguments,
    own_rows,
    set_at,
    value_at,
    with_rows,
)
from planc.record import record

LIMITS: Mapping[torch.dtype, float] = {torch.float64: 1e-9, torch.float32: 1e-5}
"""The relative error at which shares add up. A wrong attribute is off by a tenth and more."""
_MAX_ATTRIBUTES, _MAX_TRIALS = 3, 200
"""The most attributes that change together, and the most sets of them that are tried with a layout."""


@record
class Call:
    """One call of an attention, with real weights and inputs."""

    attention: nn.Module
    named: trial_shares.Arguments
    num_samples: int


@record
class Counts:
    """The attributes to divide, as paths from the attention, and the linear layers that were shared."""

    attributes: tuple[str, ...]
    first: tuple[str, ...]
    """The layers that share their output features."""
    last: str
    """The layer that shares its input features."""
    layouts: tuple[trial_shares.Layout, ...]
    """The layout of what each of the first layers projects to."""
    per_head: tuple[PerHead, ...] = ()
    """The arguments of which a rank has its own heads."""


def find_counts(call: Call, *, heads: Heads, shares: Sequence[int], dtype: torch.dtype) -> Counts | None:
    """The layouts and the smallest set of attributes with which the shares of `shares` ranks add up; None
    without them.

    None also if several sets of one size do, because nothing shows which of them the code means.
    """
    order = linear_order(call)
    if order is None:
        return None
    *first, last = order
    trial = Trial(call, tuple(first), last, LIMITS[dtype], heads)
    if any(size % share for size in trial.sizes() for share in shares) or not trial.is_possible():
        return None
    cut = ((), trial_shares.per_head_arguments(call.named, num_heads=heads[0], num_samples=call.num_samples))
    names = tuple(_attributes(call.attention, shares))
    features = [out_features(_layer(call, name)) for name in first]
    for per_head, layouts in itertools.product(dict.fromkeys(cut), trial_shares.layouts_of(features, heads)):
        trial.layouts, trial.per_head = layouts, per_head
        found = list(_smallest(trial, names, shares))
        if found:
            is_clear = len(found) == 1
            return Counts(found[0], tuple(first), last, layouts, per_head) if is_clear else None
    return None


def _smallest(trial: Trial, names: Sequence[str], shares: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The smallest sets of attributes with which the shares add up."""
    return smallest_sets(
        names,
        lambda attributes: all(trial.adds_up(dict.fromkeys(attributes, share), share) for share in shares),
    )


def smallest_sets(
    names: Sequence[str], works: Callable[[tuple[str, ...]], bool]
) -> Iterator[tuple[str, ...]]:
    """The smallest sets of attributes with which a trial works."""
    num_trials, has_worked = 0, False
    for size in range(min(_MAX_ATTRIBUTES, len(names)) + 1):
        for attributes in itertools.combinations(names, size):
            num_trials += 1
            if num_trials > _MAX_TRIALS:
                return
            if works(attributes):
                has_worked = True
                yield attributes
        if has_worked:
            return


def linear_order(call: Call) -> tuple[str, ...] | None:
    """The linear layers in the order of their calls; None if one runs twice, or others have matrices."""
    order: list[str] = []
    linears = {name: one for name, one in call.attention.named_modules() if isinstance(one, Linear)}
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
        _run(call, call.named.positional, call.named.keywords)
    return tuple(order) if sorted(order) == sorted(linears) and len(order) > 1 else None


def _attributes(attention: nn.Module, shares: Sequence[int]) -> Iterator[str]:
    """Paths of the integers that every number of ranks divides."""
    for path, value in integers(attention):
        if all(value % share == 0 for share in shares):
            yield path


def integers(attention: nn.Module) -> Iterator[tuple[str, int]]:
    """Paths and values of the integers above 1 that may count heads."""
    paths = [
        f"{path}.{name}" if path else name
        for path, module in attention.named_modules()
        if not isinstance(module, Linear)
        for name in vars(module)
        if not name.startswith("_")
    ]
    if hasattr(attention, CONFIG):
        paths += [f"{CONFIG}.{name}" for name in IN_CONFIG]
    for path in paths:
        value = value_at(attention, path)
        if value is not None and value > 1:
            yield path, value


@dataclass(slots=True)
class Trial:
    """Shares of an attention, with the whole that they must add up to."""

    call: Call
    first: tuple[str, ...]
    last: str
    limit: float
    heads: Heads
    layouts: tuple[trial_shares.Layout, ...] = ()
    per_head: tuple[PerHead, ...] = ()
    replicated: Mapping[str, KvProjection] = field(default_factory=dict)
    """Layers with key/value heads of which several ranks compute the same."""
    _expected: tuple[Tensor, ...] = ()

    def sizes(self) -> tuple[int, ...]:
        """The features that ranks share, of the first layers and the last."""
        first = (out_features(self._linear(name)) for name in self.first)
        return (*first, in_features(self._linear(self.last)))

    def is_possible(self) -> bool:
        """Whether the whole can be computed, and depends on its inputs."""
        try:
            self._expected = self._values()
        except Exception:  # a model's own code may raise anything in a dtype that it does not expect
            return False
        return all(bool(one.isfinite().all()) for one in self._expected) and len(self._expected) > 1

    def adds_up(self, divisors: Mapping[str, int], share: int) -> bool:
        """Whether the outputs and gradients of all ranks, with their own attributes, sum to the whole."""
        total: tuple[Tensor, ...] = ()
        with divided(self.call.attention, divisors):
            for rank in range(share):
                try:
                    with self._share_of(rank, share):
                        values = self._values(rank, share)
                except Exception:  # views of other sizes, in a model's own code
                    return False
                if [one.shape for one in values] != [one.shape for one in self._expected]:
                    return False
                total = tuple(map(torch.add, total, values)) if total else values
        return all(_error(*pair) <= self.limit for pair in zip(total, self._expected, strict=True))

    def _linear(self, name: str) -> Linear:
        return _layer(self.call, name)

    def _values(self, rank: int = 0, share: int = 1) -> tuple[Tensor, ...]:
        """The last layer's output, and the gradient of every tensor that enters the attention."""
        leaves: list[Tensor] = []
        cut = {one.argument: one for one in self.per_head} if share > 1 else {}
        own = Share(rank, share, self.heads[0])

        def as_leaf(value: Tensor) -> Tensor:
            if not value.is_floating_point():
                return value
            leaves.append(value.detach().clone().requires_grad_())
            return leaves[-1]

        def given(name: str, value: Any) -> Any:
            entered = _mapped(value, as_leaf)
            if name not in cut:
                return entered
            return own.of(entered, cut[name].tensor_dim, cut[name].is_per_sample)

        named = self.call.named
        arguments = tuple(map(given, named.names, named.positional))
        keywords = {name: given(name, value) for name, value in named.keywords.items()}
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
                weight = weight.chunk(share, dim=_in_dim(self._linear(name)))[rank]
                bias = bias if bias is None or rank == 0 else torch.zeros_like(bias)
            else:
                weight, bias = self._columns(name, weight, bias, rank=rank, share=share)
            shard = {"weight": weight, "bias": bias}
            layer = self._linear(name)
            layer._parameters.update(
                {key: None if one is None else nn.Parameter(one) for key, one in shard.items()}
            )
            if isinstance(layer, Conv1D) and name != self.last:
                layer.nf = weight.shape[1]
        try:
            yield
        finally:
            for name, parameters in kept.items():
                layer = self._linear(name)
                layer._parameters.update(parameters)
                if isinstance(layer, Conv1D):
                    layer.nf = layer.weight.shape[1]

    def _columns(
        self, name: str, weight: Tensor, bias: Tensor | None, *, rank: int, share: int
    ) -> tuple[Tensor, Tensor | None]:
        """A rank's output features of one of the first layers."""
        dim = 1 - _in_dim(self._linear(name))
        parts = self._parts(name, weight.shape[dim], share)
        if any(width * copies % share for width, copies in parts):
            raise ValueError("parts that ranks can't share evenly")
        rows = own_rows(parts, rank=rank, num_ranks=share)
        return with_rows(weight, rows, dim=dim), None if bias is None else with_rows(bias, rows, dim=0)

    def _parts(self, name: str, features: int, share: int) -> Parts:
        """The parts of a layer's output features."""
        if (projection := self.replicated.get(name)) is not None:
            queries = [(projection.query_width, 1)] if projection.query_width else []
            return [*queries, *((width, share // self.heads[1]) for width in projection.kv_widths)]
        layout = self.layouts[self.first.index(name)] if self.layouts else trial_shares.BLOCK
        widths = trial_shares.widths_of(layout, features, self.heads)
        assert widths is not None, "only layouts that fit are tried"
        return [(width, 1) for width in widths]


@contextlib.contextmanager
def shared(attention: nn.Module, counts: Counts, *, heads: Heads, by: int) -> Iterator[None]:
    """Inside, the code of an attention works on the first rank's share of the heads."""
    cuts = [(one.argument, one.tensor_dim, one.is_per_sample) for one in counts.per_head]
    handle = cut_arguments(attention, cuts, Share(0, by, heads[0]))
    with _removed([handle]), divided(attention, dict.fromkeys(counts.attributes, by)):
        yield


@contextlib.contextmanager
def divided(attention: nn.Module, divisors: Mapping[str, int]) -> Iterator[None]:
    """Inside, the attributes at these paths are a number of times smaller."""
    kept = dict(vars(attention))
    values = {path: value_at(attention, path) for path in divisors}
    for path, value in values.items():
        assert value is not None, f"{path} was an integer"
        set_at(attention, path, value // divisors[path])
    try:
        yield
    finally:
        for path, value in values.items():
            if value is not None:
                set_at(attention, path, value)
        if CONFIG in kept:
            # The attention had the model's own config, and not a copy.
            vars(attention)[CONFIG] = kept[CONFIG]


def _layer(call: Call, name: str) -> Linear:
    found = call.attention.get_submodule(name)
    assert isinstance(found, Linear), f"{name} was recorded as a linear layer"
    return found


def _in_dim(layer: Linear) -> int:
    """The dimension of a layer's weight that its input features are along."""
    return 0 if isinstance(layer, Conv1D) else 1


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
