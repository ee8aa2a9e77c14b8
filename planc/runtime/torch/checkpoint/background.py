"""Saves that a thread writes while training continues.

A thread of each rank copies the tensors that the rank writes while the next step computes, on a device's
stream of its own, into memory that another thread has allocated since the first step. The optimizer waits
before it changes a tensor whose copy is not made yet. Then the thread does the rest of a save on the copies:
the same code writes, hashes, syncs, commits, and deletes old steps. Its collectives are in a gloo group of
its own, which nothing else uses: in the group of training, the order of the two threads' collectives would
differ between ranks. While no thread works, training's own thread may use the group, and plans the first
save there.

One save at a time is under way. `has_ended` asks all ranks, so they learn of its end, and of its error, after
the same step; every rank must call it after the same steps. `join` asks nobody: the threads of all ranks end
in the same way. What ends the process ends the thread too, and then the step is not committed: the threads
are daemons.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from planc.runtime.observer import SaveTimes, WaitCause
from planc.runtime.torch.checkpoint.planning import SavePlan, plan_save
from planc.runtime.torch.checkpoint.saving import Destination, write
from planc.runtime.torch.checkpoint.tensors import TrainingState, named_packings, named_tensors


class Stage:
    """Copies in host memory of what one rank writes, made during the next forward and reused by later saves.

    A rank copies only its own chunks, so all ranks together hold one checkpoint, however many replicas train.
    A device copies asynchronously into pinned memory only. Pinning takes seconds for a few GB, so a thread
    does it before the first save is due.
    """

    def __init__(self, plan: SavePlan, tensors: Mapping[str, Tensor], *, device: torch.device) -> None:
        self.plan = plan
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._kinds = [(source.shape, source.dtype) for source in plan.sources(tensors)]
        self.copies: list[Tensor] = []
        """The copies, in the order of the rank's file, once they are allocated."""

    @property
    def num_bytes(self) -> int:
        """The size of all copies, once they are allocated."""
        return sum(copy.nbytes for copy in self.copies)

    def allocate(self) -> None:
        """Allocate the copies, chunk by chunk. Any thread may call it, once, before the first copy."""
        with self._on_stream():
            for shape, dtype in self._kinds:
                is_pinned = self._stream is not None
                self.copies.append(torch.empty(shape, dtype=dtype, device="cpu", pin_memory=is_pinned))

    def begin(self, tensors: Mapping[str, Tensor], *, changing: Container[str]) -> Callable[[], None]:
        """Return what copies this rank's chunks of the tensors. Any thread may call that, once.

        Until it returns, only those that are `changing` may change: of them it copies the values of now.
        """
        sources = [
            source.clone() if chunk.tensor in changing else source
            for chunk, source in zip(self.plan.chunks, self.plan.sources(tensors), strict=True)
        ]
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return partial(self._copy, sources)

    def _copy(self, sources: Sequence[Tensor]) -> None:
        with torch.no_grad(), self._on_stream():
            for copy, source in zip(self.copies, sources, strict=True):
                copy.copy_(source, non_blocking=self._stream is not None)
        if self._stream is not None:
            self._stream.synchronize()

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


@dataclass(slots=True)
class _UnderWay:
    """A save in a thread: its directory, and the end of its work in seconds of `perf_counter`."""

    began: float
    allocated: Future[None]
    """The allocation of the memory for the copies."""
    done: Future[tuple[Path, float]] = field(default_factory=Future)
    copied: threading.Event = field(default_factory=threading.Event)
    """Set once the tensors may change, even if their copy has failed."""
    copied_at: float = 0.0
    hook: RemovableHandle | None = None
    """The hook of the optimizer, which waits for the copies."""
    waits: dict[WaitCause, float] = field(default_factory=dict)

    @contextmanager
    def blocking(self, cause: WaitCause) -> Iterator[None]:
        """Count the time inside as time that training waited."""
        began = time.perf_counter()
        yield
        self.waits[cause] = self.waits.get(cause, 0.0) + time.perf_counter() - began

    def wait_for_copies(self, *_: Any) -> None:
        """Wait until the tensors may change: a hook of the optimizer, before its step."""
        with self.blocking("memory"):
            wait([self.allocated])
        with self.blocking("copies"):
            self.copied.wait()

    def times(self, *, ended: float) -> SaveTimes:
        """The seconds of the save, whose work ended then."""
        waited = sum(self.waits.values())
        copied = self.copied_at - self.began
        return SaveTimes(max(ended - self.began, waited), copied, dict(self.waits))


class BackgroundSaves:
    """One rank's part in saves under way. Every rank must create one, at the same point."""

    def __init__(self, *, device: torch.device, timeout_seconds: float) -> None:
        self._device = device
        self._group = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
            if dist.is_initialized()
            else None
        )
        self._stage: Stage | None = None
        self._allocated: Future[None] | None = None
        self._under_way: _UnderWay | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a save has begun and was not joined yet: the same on every rank."""
        return self._under_way is not None

    @property
    def staged_bytes(self) -> int:
        """The size of this rank's copies in host memory."""
        return self._stage.num_bytes if self._stage is not None else 0

    def prepare(self, state: TrainingState, *, plan: SavePlan | None = None) -> None:
        """Begin to allocate memory for copies in a thread. Every rank must call it, before the first save.

        Without a plan it makes one. An error of the allocation is that of the first save.
        """
        assert self._stage is None, "memory is allocated once"
        tensors = named_tensors(state)
        plan = plan or plan_save(
            tensors, packings=named_packings(state), group=self._group, stages=state.stages
        )
        self._stage = Stage(plan, tensors, device=self._device)
        # No daemon: a process that ends amid an allocation of PyTorch's might abort.
        allocating = ThreadPoolExecutor(1, thread_name_prefix="planc-save-memory")
        self._allocated = allocating.submit(self._stage.allocate)
        allocating.shutdown(wait=False)

    def start(self, state: TrainingState, *, to: Destination) -> None:
        """Begin to copy and write this rank's part. Every rank must call it, with no save under way.

        Of the state, only the optimizer's step may change parameters and moments until the save is joined.
        The first save prepares itself, unless that was done. If a tensor can't be saved, every rank raises a
        CheckpointError at once.
        """
        assert self._under_way is None, "one save at a time: `join` the one before"
        began = time.perf_counter()
        if self._stage is None:
            self.prepare(state)
        assert self._stage is not None and self._allocated is not None, "they are prepared"
        under_way = _UnderWay(began, self._allocated)
        # A forward may change buffers.
        buffers = {f"model.{name}" for name, _ in state.model.named_buffers()}
        copy = self._stage.begin(named_tensors(state), changing=buffers)
        assert state.optimizer is not None, "a save behind training has one"
        under_way.hook = state.optimizer.register_step_pre_hook(under_way.wait_for_copies)
        self._under_way = under_way
        work = partial(self._write, self._stage, copy, to, under_way)
        threading.Thread(target=work, name="planc-save", daemon=True).start()
        under_way.waits["start"] = time.perf_counter() - began

    def has_ended(self) -> bool:
        """Whether the save under way has ended on every rank, even with an error. Every rank must call it."""
        assert self._under_way is not None, "there is a save to ask about"
        with self._under_way.blocking("ranks"):
            ended = torch.tensor(int(self._under_way.done.done()))
            if self._group is not None and dist.get_world_size() > 1:
                # In training's group, because the thread may be using its own. On the host, so it waits for
                # the CPU only.
                dist.all_reduce(ended, op=dist.ReduceOp.MIN)
            return bool(ended)

    def join(self) -> tuple[Path, SaveTimes]:
        """Wait for the save under way; return its directory. Every rank raises its CheckpointError."""
        assert self._under_way is not None, "there is a save to wait for"
        under_way, self._under_way = self._under_way, None
        with under_way.blocking("end"):
            assert under_way.hook is not None, "it is set before the thread starts"
            under_way.hook.remove()
            directory, ended = under_way.done.result()
        return directory, under_way.times(ended=ended)

    def _write(self, stage: Stage, copy: Callable[[], None], to: Destination, under_way: _UnderWay) -> None:
        try:
            try:
                under_way.allocated.result()
                copy()
            finally:
                under_way.copied_at = time.perf_counter()
                under_way.copied.set()
            directory = write(stage.copies, plan=stage.plan, to=to, group=self._group)
            under_way.done.set_result((directory, time.perf_counter()))
        except BaseException as error:
            # `join` raises it, with the thread's traceback.
            under_way.done.set_exception(error)
