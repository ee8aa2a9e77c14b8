"""Bytes that the code of layers, of their parts and of what is around them keeps for backward, from a run on
the meta device. Imports torch.

Between its projections an attention rotates, cuts, copies and scales tensors, an MLP multiplies gates, and a
state space model scans. The stem, which holds the layers, scales and normalizes. All of this differs from
model to model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planc.inventory.footprint import NOTHING, OwnCode
from planc.inventory.probe.attention_calls import OWN, WITH_MASK, WITHOUT_MASK, attention_calls
from planc.inventory.probe.equal_layers import (
    also_in_equal_layers,
    passing,
    states_of,
    with_equal_layers,
    without_equal_layers,
)
from planc.inventory.probe.forwards import lacks_values, run_again
from planc.inventory.probe.kinds import Linear, kind_of, owns_parameters
from planc.inventory.schema import Kind, Module
from planc.modeling.first_positions import FirstPositions
from planc.modeling.layers import nature
from planc.modeling.private import tree_leaves, tree_map_only
from planc.record import record
from planc.vocab import ancestors, parent_of

_LENGTHS = (256, 512), (16, 32)
"""Tokens of two sequences: multiples of the chunks that scans pad to; fewer, for models of few positions."""
_BATCH = 2
"""Sequences: what one alone could share with others would not be seen to be copied."""
_DTYPES = torch.bfloat16, torch.float32
_COUNTED_APART = (Kind.LINEAR, Kind.CONV1D, Kind.NORM)


@record
class _Call:
    """A module's arguments, and what it returned."""

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    output: Any


_Calls = tuple[tuple[int, _Call], tuple[int, _Call]]
"""The calls of a module on sequences of two lengths."""


def with_own_codes(
    modules: Iterable[Module], model: PreTrainedModel, *, blocks: Sequence[str], experts: Collection[str]
) -> tuple[Module, ...]:
    """The modules, of which layers, their parts and stems have what their own code keeps.

    Gated norms, which read more than one tensor, are part of the code around them, and keep nothing else.

    Parts with `experts`, whose rows another rule counts, are left out, and what does not run by itself, as
    attention that reads another layer's keys. The model is on the meta device and in bfloat16, and may not be
    of use afterwards: some grow their tables for long sequences.
    """
    with attention_calls() as attending, FirstPositions(lacks_values), _without_experts(model, experts):
        with without_equal_layers(model) as instead:
            named = dict(_layers_and_parts(model, blocks, experts))
            gated = _gated_norms(model)
            stems = {fqn: model.get_submodule(fqn) for block in blocks if (fqn := parent_of(block))}
            calls = _calls(model, {**named, **stems})
            running = {fqn: one for fqn, one in named.items() if fqn in calls and fqn not in instead}
            found = _own_codes(model, running, blocks, attending, calls)
        found |= _stem_codes(stems, blocks, named, calls)
    found = with_equal_layers(found, instead)
    counted = {fqn for fqn in also_in_equal_layers(gated, instead) if found.keys() & {*ancestors(fqn)}}
    modules = (replace(one, footprint=NOTHING) if one.fqn in counted else one for one in modules)
    codes = ((module, *found.get(module.fqn, (None, None))) for module in modules)
    return tuple(replace(module, own_code=own, eager_code=eager) for module, own, eager in codes)


@contextlib.contextmanager
def _without_experts(model: nn.Module, experts: Iterable[str]) -> Iterator[None]:
    """Inside, experts give the rows that they take, as new tensors. Their kernels take one dtype only."""
    with contextlib.ExitStack() as stack:
        for own in map(vars, map(model.get_submodule, experts)):
            own["forward"] = lambda *args, **kwargs: states_of(args, kwargs).clone()
            stack.callback(own.pop, "forward")
        yield


def _gated_norms(model: PreTrainedModel) -> frozenset[str]:
    """The norms that a forward gives several tensors."""
    norms: set[str] = set()

    def note(fqn: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_gated(args, kwargs):
            norms.add(fqn)

    with contextlib.ExitStack() as stack:
        for fqn, module in model.named_modules():
            if kind_of(module) is Kind.NORM:
                hook = module.register_forward_pre_hook(partial(note, fqn), with_kwargs=True)
                stack.callback(hook.remove)
        run_again(model)
    return frozenset(norms)


def _is_gated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return sum(isinstance(one, Tensor) for one in (*args, *kwargs.values())) > 1


def _own_codes(
    model: PreTrainedModel,
    named: Mapping[str, nn.Module],
    blocks: Sequence[str],
    attending: Collection[nn.Module],
    called: Mapping[str, _Calls],
) -> dict[str, tuple[OwnCode, OwnCode]]:
    """Around a fused kernel, and with the model's own attention function, which `attending` modules call."""
    by_nature: dict[object, tuple[OwnCode, OwnCode]] = {}
    codes: dict[str, tuple[OwnCode, OwnCode]] = {}
    for fqn, module in named.items():
        calls, is_layer = called[fqn], parent_of(fqn) in blocks
        # A model's own code may raise anything where it runs by itself.
        with contextlib.suppress(Exception):
            if (kind := nature(module)) not in by_nature:
                parts = tuple(filter(_is_part, module.children())) if is_layer else ()
                around = eager = _measured(module, calls, parts)
                if not is_layer and any(one in attending for one in module.modules()):
                    with _eager(model):
                        eager = _measured(module, calls, ())
                by_nature[kind] = around, eager
            codes[fqn] = by_nature[kind]
    return codes


def _stem_codes(
    stems: Mapping[str, nn.Module],
    blocks: Sequence[str],
    named: Mapping[str, nn.Module],
    called: Mapping[str, _Calls],
) -> dict[str, tuple[OwnCode, OwnCode]]:
    """The own code of what holds layers, without them: each passes on the hidden states that it takes."""
    codes: dict[str, tuple[OwnCode, OwnCode]] = {}
    for fqn, stem in stems.items():
        own = [block for block in blocks if parent_of(block) == fqn]
        layers = {one: named[one] for one in called if parent_of(one) in own}
        apart = (*layers.values(), *filter(_is_part, stem.children()))
        with contextlib.suppress(Exception), _passing_on(layers, called):
            code = _measured(stem, called[fqn], apart)
            codes[fqn] = code, code
    return codes


@contextlib.contextmanager
def _passing_on(layers: Mapping[str, nn.Module], called: Mapping[str, _Calls]) -> Iterator[None]:
    """Inside, layers give the hidden states that they take, as new tensors, and what else they returned."""

    def standing_in(calls: _Calls) -> Callable[..., Any]:
        returned = {states_of(*call.arguments).shape: passing([call.output]) for _, call in calls}

        def forward(*args: Any, **kwargs: Any) -> Any:
            states = states_of(args, kwargs)
            return returned[states.shape](states.clone())

        return forward

    with contextlib.ExitStack() as stack:
        for fqn, layer in layers.items():
            vars(layer)["forward"] = standing_in(called[fqn])
            stack.callback(vars(layer).pop, "forward")
        yield


def _layers_and_parts(
    model: nn.Module, blocks: Sequence[str], experts: Collection[str]
) -> Iterator[tuple[str, nn.Module]]:
    for block in blocks:
        for name, layer in model.get_submodule(block).named_children():
            yield f"{block}.{name}", layer
            for part_name, part in layer.named_children():
                fqn = f"{block}.{name}.{part_name}"
                has_experts = any(one == fqn or one.startswith(f"{fqn}.") for one in experts)
                has_lists = any(isinstance(one, nn.ModuleList) for one in part.modules())
                if _is_part(part) and not (has_experts or has_lists or _is_counted(part)):
                    yield fqn, part


def _is_part(module: nn.Module) -> bool:
    """Functions without parameters, such as activations, belong to the code around them."""
    return any(True for _ in module.parameters())


def _is_counted(module: nn.Module) -> bool:
    """Whether another rule counts what a module keeps: of norms, it counts those that have weights."""
    is_known = kind_of(module) in _COUNTED_APART and owns_parameters(module)
    return is_known or isinstance(module, nn.Dropout)


def _calls(model: PreTrainedModel, named: Mapping[str, nn.Module]) -> dict[str, _Calls]:
    """Return the arguments of each module that forwards on two lengths call."""
    for short, long in _LENGTHS:
        # On lengths that it does not take, a model may raise anything.
        with contextlib.suppress(Exception):
            less, more = (_calls_on(model, named, length) for length in (short, long))
            return {
                fqn: ((short, less[fqn]), (long, more[fqn]))
                for fqn in named
                if fqn in less.keys() & more.keys()
            }
    return {}


def _calls_on(model: PreTrainedModel, named: Mapping[str, nn.Module], length: int) -> dict[str, _Call]:
    calls: dict[str, _Call] = {}

    def note(fqn: str) -> Callable[..., None]:
        return lambda _, args, kwargs, output: calls.update({fqn: _Call((args, kwargs), output)})

    with contextlib.ExitStack() as stack:
        for fqn, module in named.items():
            stack.callback(module.register_forward_hook(note(fqn), with_kwargs=True).remove)
        ids = torch.zeros(_BATCH, length, dtype=torch.long, device="meta")
        run_again(model, {"input_ids": ids}, with_gradients=True)
    return calls


def _measured(module: nn.Module, calls: _Calls, apart: Collection[nn.Module]) -> OwnCode:
    (token, pair), (wide_token, wide_pair) = (
        _by_length(*((length, _kept(module, call, dtype, apart)) for length, call in calls))
        for dtype in _DTYPES
    )
    return OwnCode(by_token=(token, wide_token), by_pair=(pair, wide_pair))


def _by_length(less: tuple[int, int], more: tuple[int, int]) -> tuple[int, int]:
    """Bytes of each token, and of each pair of tokens, that make up those of both lengths."""
    (short, short_bytes), (long, long_bytes) = less, more
    less_by_token, more_by_token = short_bytes / (_BATCH * short), long_bytes / (_BATCH * long)
    # What the batch shares, or code pads, takes less of each token in a longer sequence.
    by_pair = max(0.0, (more_by_token - less_by_token) / (long - short))
    return max(0, round(more_by_token - by_pair * long)), round(by_pair)


def _kept(module: nn.Module, call: _Call, dtype: torch.dtype, apart: Collection[nn.Module]) -> int:
    """Bytes that a forward saves outside of what is counted apart, and which no other rule counts."""

    def taken(tensor: Tensor) -> Tensor:
        # What is float32 in a bfloat16 model stays so.
        is_cast = tensor.is_floating_point() and dtype is torch.float32
        found = tensor.detach().to(dtype) if is_cast else tensor.detach()
        return found.requires_grad_(tensor.requires_grad)

    arguments = tree_map_only(Tensor, taken, call.arguments)
    own = {name: taken(one) for name, one in module.named_parameters()}
    # FSDP casts parameters, and no buffers.
    own |= {name: one.float() if one.is_floating_point() else one for name, one in module.named_buffers()}
    watch = _Watch()
    with _kernel(watch), watch.modules(module, apart), saved_tensors_hooks(watch.save, lambda one: one):
        functional_call(module, own, *arguments)
    for tensor in tree_leaves((arguments, own, watch.read)):
        if isinstance(tensor, Tensor):
            watch.saved.pop(tensor.untyped_storage()._cdata, None)
    return sum(watch.saved.values()) - sum(watch.in_kernel.values())


@contextlib.contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = OWN
    try:
        yield
    finally:
        model.config._attn_implementation = before


@dataclass(slots=True)
class _Watch:
    """A record of what code saves outside of modules that are counted apart."""

    saved: dict[int, int] = field(default_factory=dict)
    """Bytes of each storage, by address."""
    in_kernel: dict[nn.Module, int] = field(default_factory=dict)
    """Bytes of queries, keys and values, by attention: of its first call, which another rule counts."""
    read: list[Tensor] = field(default_factory=list)
    """The inputs of linear layers."""
    _alive: list[Tensor] = field(default_factory=list)
    """Held: else an address could be given twice."""
    _depth: int = 0
    """The modules under way that are counted apart."""

    @property
    def is_counting(self) -> bool:
        return self._depth == 0

    def save(self, tensor: Tensor) -> Tensor:
        if self.is_counting:
            storage = tensor.untyped_storage()
            self.saved[storage._cdata] = storage.nbytes()
            self._alive.append(tensor)
        return tensor

    @contextlib.contextmanager
    def modules(self, outer: nn.Module, apart: Collection[nn.Module]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in outer.modules():
                if isinstance(module, Linear):
                    stack.callback(module.register_forward_pre_hook(self._read).remove)
                if _is_counted(module) or module in apart:
                    enter, leave = partial(self._pass, 1), partial(self._pass, -1)
                    stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                    stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
            yield

    def _read(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        self.read.append(args[0])

    def _pass(self, step: int, module: nn.Module, args: Any, kwargs: Any, *_: object) -> None:
        if not (kind_of(module) is Kind.NORM and _is_gated(args, kwargs)):
            self._depth += step


@contextlib.contextmanager
def _kernel(watch: _Watch) -> Iterator[None]:
    """A kernel in the place of the probe's, which saves what a fused one does."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        if watch.is_counting:
            watch.in_kernel.setdefault(module, query.nbytes + key.nbytes + value.nbytes)
        return _Fused.apply(query, key, value).transpose(1, 2).contiguous(), None  # type: ignore[no-untyped-call]

    names = WITHOUT_MASK, WITH_MASK
    before = {name: ALL_ATTENTION_FUNCTIONS[name] for name in names}
    ALL_ATTENTION_FUNCTIONS.update(dict.fromkeys(names, attend))
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS.update(before)


class _Fused(torch.autograd.Function):
    """Its output has heads and tokens in the order that they have in memory in the queries, as torch's does.

    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd: `out = empty_like(q)`.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        first, second = (1, 2) if query.stride(1) > query.stride(2) else (2, 1)
        shape = query.shape[0], query.shape[first], query.shape[second], value.shape[-1]
        output = query.new_empty(shape).transpose(1, 2) if first == 2 else query.new_empty(shape)
        ctx.save_for_backward(query, key, value, output)
        return output
