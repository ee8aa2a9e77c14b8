"""The inputs of recomputed modules in host memory, from their forward to their backward.

A module's forward copies its input to the host while it computes, on a stream of its own, and drops it when
the next module begins. Its backward finds the input back on the device: the module after it has asked for it.
So a device holds the input of the module that runs, and one more. The module that ran last finds its input
where it was. Without a device's queue the same code moves tensors between two buffers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from planc.modeling.private import tree_leaves, tree_map_only


def host_memory() -> AbstractContextManager[object]:
    """The context in which copies in host memory are made: a rehearsal does not count them."""
    return nullcontext()


@dataclass(slots=True, eq=False)
class _Parked:
    """A module's inputs of one forward."""

    place: int
    """The module's, among all that park their inputs."""
    on_device: tuple[Tensor, ...]
    """Empty while only the host has them."""
    on_host: tuple[Tensor, ...]
    copied: Any
    """The event of the last copy, in either direction."""
    before: _Parked | None = field(default=None, repr=False)
    """The inputs that backward needs next."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an input among a module's arguments."""

    index: int


class Offloader:
    """Parks inputs of a rank's modules. Buffers in host memory are pinned, made once and used again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._stream: torch.cuda.Stream | None = None
        self._last: _Parked | None = None
        self._free: dict[object, list[Tensor]] = {}
        self._num_wrapped = 0

    def wrap(self, inner: Callable[..., Any], *, is_trained: Callable[[], bool]) -> Offloaded:
        """A module's forward, whose inputs are in host memory until backward recomputes it."""
        self._num_wrapped += 1
        return Offloaded(inner, is_trained, self, self._num_wrapped)

    def park(self, tensors: Iterable[Tensor], place: int) -> _Parked:
        """Begin to copy tensors to the host. Those of the module before are dropped: they have arrived."""
        last = self._last
        tensors = tuple(tensor.detach() for tensor in tensors)
        parked = _Parked(place, tensors, *self._to_host(tensors))
        if last is not None:
            self._wait(last.copied)
            last.on_device = ()
            parked.before = last if last.place == place - 1 else None
        self._last = parked
        return parked

    def fetch(self, parked: _Parked) -> tuple[Tensor, ...]:
        """The tensors on the device; those that backward needs next are on their way when this returns."""
        if not parked.on_device:
            self._bring(parked)
        self._wait(parked.copied)
        tensors, parked.on_device = parked.on_device, ()
        for buffer in parked.on_host:
            # On one stream, no later copy overtakes one that is on its way.
            self._free.setdefault(_layout(buffer), []).append(buffer)
        parked.on_host = ()
        if parked is self._last:
            self._last = None
        before, parked.before = parked.before, None
        if before is not None and before.on_host and not before.on_device:
            self._bring(before)
        return tensors

    def _to_host(self, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Any]:
        with host_memory():
            buffers = tuple(map(self._buffer, tensors))
            return buffers, self._copied(buffers, tensors)

    def _bring(self, parked: _Parked) -> None:
        # Of the memory of the stream that computes, which is the one to use and to free it.
        made = tuple(torch.empty_like(buffer, device=self._device) for buffer in parked.on_host)
        parked.on_device, parked.copied = made, self._copied(made, parked.on_host)

    def _buffer(self, tensor: Tensor) -> Tensor:
        if free := self._free.get(_layout(tensor)):
            return free.pop()
        return torch.empty_like(tensor, device="cpu", pin_memory=self._is_cuda)

    def _copied(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Any:
        if not self._is_cuda:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def _wait(self, event: Any) -> None:
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)


def _layout(tensor: Tensor) -> object:
    return tensor.shape, tensor.stride(), tensor.dtype


class Offloaded:
    """The forward of a module that backward recomputes, from an input that comes back from the host.

    `inner` may be replaced by what torch.compile makes of it.
    """

    def __init__(
        self, inner: Callable[..., Any], is_trained: Callable[[], bool], offloader: Offloader, place: int
    ) -> None:
        functools.update_wrapper(self, inner)
        self.inner = inner
        self._is_trained = is_trained
        self._offloader, self._place = offloader, place

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]
        # What needs no gradient, as rotary tables, all modules share: unless nothing is trained before them.
        moved = [tensor for tensor in tensors if tensor.requires_grad]
        if not moved and self._is_trained():
            moved = tensors[:1]
        if not moved or not torch.is_grad_enabled():
            return self.inner(*arguments, **keywords)
        places = {id(tensor): _Place(index) for index, tensor in enumerate(moved)}
        around = tree_map_only(Tensor, lambda one: places.get(id(one), one), (arguments, keywords))
        needs = [tensor.requires_grad for tensor in moved]
        parked = self._offloader.park(moved, self._place)
        first = [tuple(moved)]
        del moved, tensors, arguments, keywords

        def fetch() -> tuple[Tensor, ...]:
            fetched = zip(self._offloader.fetch(parked), needs, strict=True)
            return tuple(tensor.requires_grad_(is_needed) for tensor, is_needed in fetched)

        def compute() -> Any:
            args, kwargs = _filled(around, first.pop() if first else fetch())
            return self.inner(*args, **kwargs)

        return checkpoint(compute, use_reentrant=False)


def _filled(arguments: Any, tensors: Sequence[Tensor]) -> Any:
    return tree_map_only(_Place, lambda place: tensors[place.index], arguments)


def inner_forward(module: nn.Module) -> Callable[..., Any]:
    """A module's forward, inside of what moves its inputs: a compiler can't trace copies between memories."""
    forward = module.forward
    return forward.inner if isinstance(forward, Offloaded) else forward


def replace_inner_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Put another forward where `inner_forward` found one."""
    if isinstance(module.forward, Offloaded):
        module.forward.inner = forward
    else:
        module.forward = forward
