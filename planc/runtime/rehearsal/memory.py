"""The memory that a rank holds, storage by storage, as the ops of a graph allocate and free it.

Each storage counts once, however many tensors view it, in blocks of the size that CUDA's caching allocator
hands out, on the stream on which it was allocated: another stream can't reuse memory freed on this one, so
a device holds the sum of what each stream held at its own worst moment (torch
c10/cuda/CUDACachingAllocator.cpp; FSDP2's streams are in torch/distributed/fsdp/_fully_shard). The lifetime
of each storage is kept too, for `allocator.py`, which computes what is reserved for them.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from planc.modeling.private import TorchDispatchMode
from planc.runtime.rehearsal.lives import Life, Lives, Moment, Visit
from planc.runtime.rehearsal.private import FakeTensor, FakeTensorMode, ShardingPropagator, fsdp_state
from planc.runtime.torch.private import OpOverload

BLOCK_BYTES = 512
"""CUDA's allocator rounds every allocation up to this."""

BEFORE = "before"
"""The segment of everything that is not measured."""

_ONLY_SHAPES = ("detach", "empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros")
"""Ops that read only shapes of tensors."""

COMPUTE = "compute"
"""The stream on which everything runs by default."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a segment held at one moment on all streams, by purpose."""

    num_bytes: int
    parts: tuple[tuple[str, int], ...]
    streams: tuple[tuple[str, int], ...]
    """The most on each stream at that stream's own worst moment."""


@dataclass(slots=True)
class _Storage:
    num_bytes: int
    purpose: str
    stream: str
    made: Moment
    reference: weakref.ref[torch.UntypedStorage]
    """Kept for its callback, which runs when the storage is freed."""
    owner: str = ""


@dataclass(slots=True)
class _Segment:
    """Running maxima of a part of a step."""

    num_bytes: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)


class MemoryTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage that ops create under it. `segment` names the part of the run it is in.

    Enter it inside the fake mode that it is given, and all of it inside `watching`; storages can be freed
    between entries.
    """

    supports_higher_order_operators = True
    """They pass: graphs of compiled modules call some."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake_mode = fake_mode
        self._live: dict[int, _Storage] = {}
        self._total = 0
        self._by_purpose: Counter[str] = Counter()
        self._by_stream: Counter[str] = Counter()
        self._segments: dict[str, _Segment] = {}
        self._segment = BEFORE
        self._purpose = ""
        self._main_stream = torch.cpu.current_stream()
        self._streams: list[object] = []
        self._is_looking_away = False
        self._visits = [Visit("", is_forward=True, num_events=0)]
        self._num_events = 0
        self._past: list[Life] = []

    def enter_segment(self, name: str) -> None:
        self._segment = name
        self._update_peak()

    def set_purpose(self, purpose: str) -> None:
        """Set the purpose of storages that are created from now on."""
        self._purpose = purpose

    def enter_visit(self, layer: str = "", *, is_forward: bool = True) -> None:
        """Begin a layer's forward or backward; of no layer without a name."""
        self._visits[-1] = replace(self._visits[-1], num_events=self._num_events)
        self._visits.append(Visit(layer, is_forward, 0))
        self._num_events = 0

    def own(self, tensor: Tensor, *, layer: str) -> None:
        """Assign a tensor to a layer: its parameter, optimizer state, or a copy of one."""
        storage = self._live.get(tensor.untyped_storage()._cdata)
        if storage is not None:
            storage.owner = layer

    def lives(self) -> Lives:
        """Every block so far, those that are still held among them."""
        held = (self._life(storage, freed=None) for storage in self._live.values() if storage.num_bytes)
        last = replace(self._visits[-1], num_events=self._num_events)
        return Lives((*self._visits[:-1], last), (*self._past, *held))

    def relabel(self, tensors: Iterable[Tensor], *, purpose: str) -> None:
        """Change the purpose of tensors that exist already."""
        for tensor in tensors:
            storage = self._live.get(tensor.untyped_storage()._cdata)
            if storage is not None:
                self._by_purpose[storage.purpose] -= storage.num_bytes
                storage.purpose = purpose
                self._by_purpose[purpose] += storage.num_bytes

    @property
    def is_measuring(self) -> bool:
        """Whether the run is past what comes `before` the measured step."""
        return self._segment != BEFORE

    def peaks(self) -> dict[str, Peak]:
        """The peak of every segment so far, in the order in which they were first entered."""
        return {
            name: Peak(found.num_bytes, _sizes(found.parts), _sizes(found.streams))
            for name, found in self._segments.items()
        }

    @property
    def held(self) -> dict[str, int]:
        """The current bytes, by purpose."""
        return dict(_sizes(self._by_purpose))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A DTensor's op comes back here as what it does on this rank.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            # The fake mode's own answer. Autograd asks more often than it calls ops.
            return args[0].device
        if func is torch.ops._c10d_functional.wait_tensor.default:
            # It returns its argument; with fake tensors it would make a copy.
            return args[0]
        if not _reads_no_values(func):
            self._refuse_freed((*args, *(kwargs or {}).values()), func)
        result = func(*args, **(kwargs or {}))
        if self._is_looking_away:
            return result
        self.follow((result,))
        return result

    def _refuse_freed(self, values: Iterable[object], func: Any) -> None:
        """A run would read memory that is another tensor's by then, or nobody's: it dies, or computes with
        garbage. RuntimeError, as in an op of torch."""
        for leaf in _leaves(values):
            if leaf.numel() and not leaf.untyped_storage().nbytes():
                raise RuntimeError(f"{func} uses a tensor of shape {list(leaf.shape)} whose memory is freed")

    def follow(self, values: Iterable[object]) -> None:
        """Count the tensors among these from now on, unless they are counted already."""
        for leaf in _leaves(values):
            if leaf.fake_mode is self._fake_mode:
                self._follow(leaf.untyped_storage())

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Storages that are created inside do not count."""
        before, self._is_looking_away = self._is_looking_away, True
        try:
            yield
        finally:
            self._is_looking_away = before

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._live:
            return
        reference = weakref.ref(storage, lambda _: self._freed(key))
        self._live[key] = _Storage(0, self._purpose, self._stream(), self._now(), reference)
        self._resized(key, storage.nbytes())

    def _stream(self) -> str:
        # FSDP2 enters its streams on the CPU too, where they have no effect.
        stream = torch.cpu.current_stream()
        if stream is self._main_stream:
            return COMPUTE
        if stream not in self._streams:
            self._streams.append(stream)
        return f"side stream {self._streams.index(stream) + 1}"

    def _resized(self, key: int, num_bytes: int) -> None:
        storage = self._live[key]
        rounded = -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES
        change = rounded - storage.num_bytes
        if change and storage.num_bytes:
            self._past.append(self._life(storage, freed=self._now()))
        if change and rounded:
            storage.made = self._now()
        storage.num_bytes = rounded
        self._total += change
        self._by_purpose[storage.purpose] += change
        self._by_stream[storage.stream] += change
        if change > 0:
            self._update_peak()

    def _now(self) -> Moment:
        self._num_events += 1
        return len(self._visits) - 1, self._num_events - 1

    def _life(self, storage: _Storage, *, freed: Moment | None) -> Life:
        return Life(storage.num_bytes, storage.stream, storage.made, freed, storage.owner)

    def _freed(self, key: int) -> None:
        self._resized(key, 0)
        del self._live[key]

    def _update_peak(self) -> None:
        segment = self._segments.setdefault(self._segment, _Segment())
        if self._total > segment.num_bytes:
            segment.num_bytes, segment.parts = self._total, self._by_purpose.copy()
        for stream, num_bytes in self._by_stream.items():
            segment.streams[stream] = max(segment.streams[stream], num_bytes)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow what no dispatch shows, and ignore what no rank does.

        FSDP2 frees parameters by resizing their storages in place, and ends a backward after that of any
        layer; DTensor infers shapes and dtypes by trying an op out on tensors of the global shape.
        """
        resize, propagate = torch.UntypedStorage.resize_, ShardingPropagator._propagate_tensor_meta_non_cached
        finalize = fsdp_state._root_post_backward_final_callback

        def watched_resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._live:
                self._resized(storage._cdata, size)
            return result

        def unwatched_propagate(*arguments: Any, **keywords: Any) -> Any:
            with self.looking_away():
                return propagate(*arguments, **keywords)

        def finalize_in_no_layer(*arguments: Any) -> None:
            self.enter_visit()
            finalize(*arguments)

        fsdp_state._root_post_backward_final_callback = finalize_in_no_layer
        torch.UntypedStorage.resize_ = watched_resize  # type: ignore[method-assign, assignment]
        ShardingPropagator._propagate_tensor_meta_non_cached = unwatched_propagate
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
            ShardingPropagator._propagate_tensor_meta_non_cached = propagate
            fsdp_state._root_post_backward_final_callback = finalize


def _leaves(values: Iterable[object]) -> Iterator[FakeTensor]:
    """The fake tensors among these values and those that they contain."""
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _leaves(value)
        elif isinstance(value, dict):
            yield from _leaves(value.values())


@cache
def _reads_no_values(func: Any) -> bool:
    """Whether an op works on tensors without memory: it makes views of them, or others of the same shape.

    Higher-order ops have no schema.
    """
    if not isinstance(func, OpOverload):
        return False
    name = func._schema.name.partition("::")[2]
    return func.is_view or name in _ONLY_SHAPES


def _sizes(counted: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple((name, size) for name, size in counted.items() if size)
