"""What attentions' own code keeps for backward, by running them on the meta device. Imports torch.

Between its projections and the kernel an attention rotates, cuts, copies and scales tensors. Code that does
without transformers' interface computes the scores, too. All of this differs from model to model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planc.inventory.footprint import OwnCode
from planc.inventory.probe.attention_calls import OWN, WITH_MASK, WITHOUT_MASK
from planc.inventory.probe.equal_layers import in_equal_layers
from planc.inventory.probe.forwards import run_again
from planc.inventory.probe.kinds import Linear, kind_of
from planc.inventory.schema import Kind
from planc.modeling.layers import nature
from planc.modeling.private import tree_leaves, tree_map_only

LENGTHS = 64, 128
"""Tokens of the sequences that an attention is run on: multiples of what code may pad to."""
_BATCH = 2
"""Sequences: what one alone could share with others would not be seen to be copied."""
_DTYPES = torch.bfloat16, torch.float32
_COUNTED_APART = (Kind.LINEAR, Kind.CONV1D, Kind.NORM)

_Call = tuple[tuple[Any, ...], dict[str, Any]]


def own_codes(
    model: PreTrainedModel, fqns: Sequence[str], instead: Mapping[str, str]
) -> dict[str, tuple[OwnCode, OwnCode]]:
    """What the own code of these attentions keeps: around a fused kernel, and with the model's own attention
    function. What does not run by itself, as it reads another layer's keys, has the most of the others.

    The model is on the meta device and in bfloat16. Inside `attention_calls`, and `without_equal_layers`,
    which gives `instead`.
    """
    named = {fqn: model.get_submodule(fqn) for fqn in fqns}
    by_nature: dict[object, tuple[OwnCode, OwnCode]] = {}
    found: dict[str, tuple[OwnCode, OwnCode]] = {}
    # A model's own code may raise anything, here on other lengths than those that it has been run on.
    with contextlib.suppress(Exception):
        short, long = (_calls(model, named, length) for length in LENGTHS)
        for fqn in short.keys() & long.keys():
            kind = nature(named[fqn])
            with contextlib.suppress(Exception):
                if kind not in by_nature:
                    around = _measured(named[fqn], short[fqn], long[fqn])
                    with _eager(model):
                        by_nature[kind] = around, _measured(named[fqn], short[fqn], long[fqn])
                found[fqn] = by_nature[kind]
    found |= {fqn: found[other] for fqn, other in in_equal_layers(found, instead).items()}
    most = max(found.values(), key=lambda codes: [max(one.by_token) for one in codes], default=None)
    return {} if most is None else {fqn: found.get(fqn, most) for fqn in fqns}


def _calls(model: PreTrainedModel, named: Mapping[str, nn.Module], length: int) -> dict[str, _Call]:
    """What a forward on so many tokens passes to each of the modules."""
    found: dict[str, _Call] = {}

    def note(fqn: str) -> Callable[..., None]:
        return lambda _, args, kwargs: found.update({fqn: (args, kwargs)})

    with contextlib.ExitStack() as stack:
        for fqn, module in named.items():
            stack.callback(module.register_forward_pre_hook(note(fqn), with_kwargs=True).remove)
        run_again(model, {"input_ids": torch.zeros(_BATCH, length, dtype=torch.long, device="meta")})
    return found


def _measured(module: nn.Module, short: _Call, long: _Call) -> OwnCode:
    (token, pair), (wide_token, wide_pair) = (
        _by_length(_kept(module, short, dtype), _kept(module, long, dtype)) for dtype in _DTYPES
    )
    return OwnCode(by_token=(token, wide_token), by_pair=(pair, wide_pair))


def _by_length(less: int, more: int) -> tuple[int, int]:
    """Bytes of each token, and of each pair of tokens, that make up those of both lengths."""
    short, long = LENGTHS
    less_by_token, more_by_token = less / (_BATCH * short), more / (_BATCH * long)
    by_pair = (more_by_token - less_by_token) / (long - short)
    by_token = less_by_token - by_pair * short
    return max(0, round(by_token)), max(0, round(by_pair))


def _kept(module: nn.Module, call: _Call, dtype: torch.dtype) -> int:
    """Bytes that a forward saves which no other rule counts, and which the caller does not hold."""

    def taken(tensor: Tensor) -> Tensor:
        # What is float32 in a bfloat16 model stays so.
        is_cast = tensor.is_floating_point() and dtype is torch.float32
        return tensor.detach().to(dtype) if is_cast else tensor.detach()

    arguments = tree_map_only(Tensor, taken, call)
    parameters = {name: taken(one).requires_grad_() for name, one in module.named_parameters()}
    own = parameters | {name: taken(one) for name, one in module.named_buffers()}
    next(one for one in tree_leaves(arguments) if _is_float(one)).requires_grad_()
    watch = _Watch()
    with _kernel(watch), watch.modules(module), saved_tensors_hooks(watch.save, lambda one: one):
        functional_call(module, own, *arguments)
    for tensor in tree_leaves((arguments, own, watch.read)):
        if isinstance(tensor, Tensor):
            watch.saved.pop(tensor.untyped_storage()._cdata, None)
    return sum(watch.saved.values()) - watch.in_kernel


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
    """What code saves outside of modules that are counted apart."""

    saved: dict[int, int] = field(default_factory=dict)
    """Bytes of each storage, by address."""
    in_kernel: int = 0
    """Bytes of queries, keys and values."""
    read: list[Tensor] = field(default_factory=list)
    """The inputs of linear layers."""
    _alive: list[Tensor] = field(default_factory=list)
    """Held: else an address could be given twice."""
    _depth: int = 0
    """The modules under way that are counted apart."""

    def save(self, tensor: Tensor) -> Tensor:
        if self._depth == 0:
            storage = tensor.untyped_storage()
            self.saved[storage._cdata] = storage.nbytes()
            self._alive.append(tensor)
        return tensor

    @contextlib.contextmanager
    def modules(self, outer: nn.Module) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in outer.modules():
                if kind_of(module) in _COUNTED_APART or isinstance(module, nn.Dropout):
                    stack.callback(module.register_forward_pre_hook(self._enter).remove)
                    stack.callback(module.register_forward_hook(self._leave).remove)
            yield

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._depth += 1
        if isinstance(module, Linear):
            self.read.append(args[0])

    def _leave(self, *_: object) -> None:
        self._depth -= 1


@contextlib.contextmanager
def _kernel(watch: _Watch) -> Iterator[None]:
    """A kernel in the place of the probe's, which saves what a fused one does."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        watch.in_kernel += query.nbytes + key.nbytes + value.nbytes
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


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
