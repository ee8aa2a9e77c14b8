"""Saves that a thread writes while training goes on.

Training waits while each rank copies what it writes. Then a thread of each rank does, on the copies, all
that a save does which training waits for: the same code plans nothing anew, writes, hashes, syncs, commits
and deletes what is not kept. Its collectives are in a gloo group of its own, in which nothing else meets:
in the group of training, the order of the two threads' collectives would differ between ranks. While no
thread works, training's own thread may use the group, and plans the first save there.

One save at a time is under way. `has_ended` asks all ranks, so that they learn of an end, and of its error,
after the same step; every rank must call it after the same steps. `join` asks nobody: the threads of all
ranks end alike. What ends the process ends the thread too, and then the step is not committed: the threads
are daemons.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from planc.runtime.torch.checkpoint.saving import Destination, write
from planc.runtime.torch.checkpoint.staging import Stage, StagedPlanner, plan_save
from planc.runtime.torch.checkpoint.tensors import TrainingState, named_tensors


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed directory, how long its save took, and for how much of that training waited."""

    directory: Path
    seconds: float
    blocked_seconds: float


@dataclass(slots=True)
class _UnderWay:
    """A save that a thread makes: its directory, and the end of its work in seconds of `perf_counter`."""

    began: float
    done: Future[tuple[Path, float]]
    blocked_seconds: float = 0.0


class BackgroundSaves:
    """One rank's part in saves under way. Every rank must make one, at the same point."""

    def __init__(self, *, device: torch.device, timeout_seconds: float) -> None:
        self._device = device
        self._group = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
            if dist.is_initialized()
            else None
        )
        self._stage: Stage | None = None
        self._under_way: _UnderWay | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a save has begun that no `join` has ended: the same on every rank."""
        return self._under_way is not None

    @property
    def staged_bytes(self) -> int:
        """What this rank's copies take in the host's memory."""
        return self._stage.num_bytes if self._stage is not None else 0

    def start(self, state: TrainingState, *, to: Destination) -> None:
        """Copies what this rank writes, and begins to write it. Every rank must call it; none is under way.

        A tensor that cannot be saved is a CheckpointError on every rank, at once.
        """
        assert self._under_way is None, "one save at a time: `join` the one before"
        began = time.perf_counter()
        tensors = named_tensors(state)
        if self._stage is None:
            self._stage = Stage(plan_save(tensors, group=self._group), device=self._device)
        self._stage.copy(tensors)
        self._under_way = _UnderWay(began, Future())
        threading.Thread(
            target=self._write, args=(self._stage, to, self._under_way.done), name="planc-save", daemon=True
        ).start()
        self._under_way.blocked_seconds = time.perf_counter() - began

    def has_ended(self) -> bool:
        """Whether the save under way has ended on every rank, well or not. Every rank must call it."""
        assert self._under_way is not None, "there is a save to ask about"
        began = time.perf_counter()
        ended = torch.tensor(int(self._under_way.done.done()))
        if self._group is not None and dist.get_world_size() > 1:
            # In training's group, as the thread may be in its own. On the host: no device is waited for.
            dist.all_reduce(ended, op=dist.ReduceOp.MIN)
        self._under_way.blocked_seconds += time.perf_counter() - began
        return bool(ended)

    def join(self) -> Saved:
        """Waits for the save under way; raises its CheckpointError, which is every rank's."""
        assert self._under_way is not None, "there is a save to wait for"
        under_way, self._under_way = self._under_way, None
        began = time.perf_counter()
        directory, ended = under_way.done.result()
        blocked_seconds = under_way.blocked_seconds + time.perf_counter() - began
        return Saved(directory, max(ended - under_way.began, blocked_seconds), blocked_seconds)

    def _write(self, stage: Stage, to: Destination, done: Future[tuple[Path, float]]) -> None:
        try:
            directory = write({}, to=to, planner=StagedPlanner(stage), group=self._group)
            done.set_result((directory, time.perf_counter()))
        except BaseException as error:
            # DCP's own are BaseExceptions. `join` raises it, with the thread's traceback.
            done.set_exception(error)
