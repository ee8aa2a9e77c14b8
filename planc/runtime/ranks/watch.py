"""Publish where this rank is, and find which ranks it lost once a collective fails."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from planc.graph.graph import Graph
from planc.graph.op import Op, Resource, Stage
from planc.graph.ops import CompileModules
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.files.best_effort import BestEffort
from planc.runtime.files.run_files import RANKS
from planc.runtime.process import Launch
from planc.runtime.ranks.lost_ranks import (
    Lost,
    Records,
    beat_life,
    describe,
    ended_ranks,
    process_life,
    ranks_behind,
    ranks_elsewhere,
)
from planc.runtime.ranks.whereabouts import RUN_BYTES, SIZE_BYTES, Board, Folder, State, Whereabouts, unpack

T = TypeVar("T")

BEAT_SECONDS = 2.0
"""The interval between publications of a record if ranks are on several machines."""
_SILENT_SECONDS = 2.5 * BEAT_SECONDS
_MUTE_SECONDS = 3 * _SILENT_SECONDS
"""The limit in place of `_SILENT_SECONDS`, if silence is the only sign of a lost rank."""
_PARTING_SECONDS = 1.0
"""The longest time until the system reports the end of a process that closed its connections."""
_POLL_SECONDS = 0.05
_OVERDUE_SECONDS = 1.0
_TAKES_ITS_TIME = frozenset(
    {
        *(Resource.SOURCES, Resource.DATA, Resource.EVALUATION_SETS),
        *(Resource.EVALUATIONS, Resource.CHECKPOINTS),
    }
)
"""An op that writes one of these does more than collectives, so it may take longer than any of them; so may
one that saves."""
_NO_STORE = "the rendezvous store does not respond: rank 0, its machine or its torchrun agent has exited"


class Store(Protocol):
    """The methods of `torch.distributed.Store` that are used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


class Watch:
    """One rank's record and its view of the others: through files on one machine, else through the store."""

    def __init__(
        self,
        graph: Graph,
        launch: Launch,
        *,
        store: Store,
        run_folder: Path,
        effort: BestEffort | None = None,
    ) -> None:
        self.graph, self.launch = graph, launch
        self.folder = Folder(run_folder / RANKS) if launch.is_one_machine else None
        self.store = None if self.folder else store
        self.run = _agreed_run(store, launch)
        self._effort = effort or BestEffort()
        # Without its file, a rank still finds the others, but they do not know where it is.
        buffer = self._attempt("write", lambda folder: folder.open(launch.rank)) or bytearray(SIZE_BYTES)
        self.board = Board(graph, run=self.run, host=socket.gethostname(), buffer=buffer)
        self._report_lock = threading.Lock()
        self._earlier: tuple[float, Records] = (0.0, ())
        self._found_silent: tuple[Lost, ...] = ()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._first_step = 0
        self._compiles = any(isinstance(op, CompileModules) for op in graph.setup)
        self._timed = frozenset(index for index, op in enumerate(graph.ops()) if not _takes_its_time(op))

    def start(self, *, timeout_seconds: int, overdue: Callable[[str], None] | None = None) -> None:
        """Start to publish, if ranks are on several machines.

        `overdue` is called once if an op of a step takes longer than a collective may: NCCL's own watchdog
        ends the process without an error that the op could raise. Saves, evaluations and other ops that read
        or write files may take any time; so may a first step that compiles.
        """
        if self.store is not None or overdue is not None:
            arguments = (timeout_seconds + _OVERDUE_SECONDS, overdue)
            self._thread = threading.Thread(
                target=self._beat, args=arguments, name="planc-watch", daemon=True
            )
            self._thread.start()

    def enter(self, op: Op, *, step: int, micro_step: int) -> None:
        """Record that an op begins."""
        self._first_step = self._first_step or step
        self.board.enter(op, step=step, micro_step=micro_step)

    def cut_off(self) -> str | None:
        """Describe what happened to the ranks that this one lost; None if unknown. This rank then ends."""
        return self._find(self._lost, state=State.CUT_OFF)

    def failed(self, message: str) -> None:
        """Record that this rank ends for a reason of its own, for the others to report."""
        self._find(lambda: None, state=State.FAILED, message=message.partition("\n")[0])

    def claim(self) -> bool:
        """True for the one thread that must report what ended this rank."""
        return self._report_lock.acquire(blocking=False)

    @property
    def is_claimed(self) -> bool:
        """Whether a thread reports what ends this rank, or has reported it."""
        return self._report_lock.locked()

    def give_up(self) -> None:
        """Record that this rank ends at once, on request: no other rank must blame it for what follows."""
        self._find(lambda: None, state=State.CUT_OFF)

    def known_lost(self) -> str | None:
        """Describe what happened to ranks that ended too soon or fell silent; None if no rank did.

        Unlike after `cut_off`, this rank may continue.
        """
        try:
            records = self._read()
        except RuntimeError:
            return _NO_STORE
        # A rank that reached the end of the run is not lost.
        unfinished = [
            record if record is None or record.state is not State.DONE else None for record in records
        ]
        return self._described(self._ended(unfinished) or self._silent(unfinished))

    def close(self) -> None:
        """Remove this rank's record after a run that ended well."""
        self.board.end(State.DONE)
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._attempt("delete", lambda folder: folder.remove(self.launch.rank))

    def _attempt(self, verb: str, action: Callable[[Folder], T]) -> T | None:
        """The result of an action on this rank's file, if records are in files and it succeeds."""
        folder = self.folder
        if folder is None:
            return None
        return self._effort.attempt(f"{verb} {folder.file(self.launch.rank)}", lambda: action(folder))

    def _find(self, find: Callable[[], str | None], *, state: State, message: str = "") -> str | None:
        """Return the result of `find`, after this rank has recorded how it ends itself."""
        self.claim()
        self.board.end(state, message=message)
        try:
            if self.store is not None:
                self._publish(self.store)
            return find()
        except RuntimeError:  # torch's DistError is one
            return _NO_STORE

    def _lost(self) -> str | None:
        found = self._ended_here() if self.folder else self._ended_anywhere()
        own_rank, records = self.launch.rank, self._read()
        found = found or ranks_behind(records, self.graph, own_rank=own_rank)
        return self._described(found or ranks_elsewhere(records, own_rank=own_rank))

    def _silent(self, records: Records) -> tuple[Lost, ...]:
        """If ranks are on several machines, those that have published nothing new for a while."""
        now, (taken, before) = time.monotonic(), self._earlier
        if self.folder is not None:
            return ()
        if before and now - taken >= _MUTE_SECONDS:
            life = beat_life(before, records)
            self._found_silent = ended_ranks(records, own_rank=self.launch.rank, life=life)
        if not before or now - taken >= _MUTE_SECONDS:
            self._earlier = (now, records)
        return self._found_silent

    def _described(self, lost: Sequence[Lost]) -> str | None:
        return describe(lost, self.graph, now=time.time()) if lost else None

    def _ended_here(self) -> tuple[Lost, ...]:
        deadline = time.monotonic() + _PARTING_SECONDS
        found = self._ended(self._read())
        while not found and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            found = self._ended(self._read())
        return found

    def _ended_anywhere(self) -> tuple[Lost, ...]:
        before = self._read()
        if found := self._ended(before):
            return found
        time.sleep(_SILENT_SECONDS)
        after = self._read()
        return ended_ranks(after, own_rank=self.launch.rank, life=beat_life(before, after))

    def _ended(self, records: Records) -> tuple[Lost, ...]:
        life = process_life if self.folder else _unknown_life
        return ended_ranks(records, own_rank=self.launch.rank, life=life)

    def _read(self) -> Records:
        """Every rank's record; None if it has left none in this run."""
        if self.folder is not None:
            found = self.folder.read(self.launch.world_size)
        else:
            found = [unpack(data) for data in self._published()]
        return [record if record is not None and record.run == self.run else None for record in found]

    def _published(self) -> list[bytes]:
        assert self.store is not None, "records are in files or in the store"
        keys = [_key(rank) for rank in range(self.launch.world_size)]
        if self.store.check(keys):
            return [_decoded(value) for value in self.store.multi_get(keys)]
        there = [key for key in keys if self.store.check([key])]
        values = dict(zip(there, self.store.multi_get(there), strict=True))
        return [_decoded(values.get(key, b"")) for key in keys]

    def _beat(self, limit_seconds: float, overdue: Callable[[str], None] | None) -> None:
        while not self._is_over.is_set():
            if self.store is not None:
                # The main thread's next call fails too, and reports why.
                with contextlib.suppress(RuntimeError):
                    self._publish(self.store)
            if overdue is not None and self._is_overdue(limit_seconds) and self.claim():
                lost = self._find(self._lost, state=State.RUNNING)
                overdue(lost or "no rank stands out: all are in the same op")
            self._is_over.wait(BEAT_SECONDS)

    def _is_overdue(self, limit_seconds: float) -> bool:
        record = self.board.record
        is_warm = record.step > self._first_step or (record.step > 0 and not self._compiles)
        return is_warm and record.op in self._timed and time.time() - record.since > limit_seconds

    def _publish(self, store: Store) -> None:
        # Hexadecimal digits, since a store's Python side takes text.
        store.set(_key(self.launch.rank), self.board.beat().hex())


def _agreed_run(store: Store, launch: Launch) -> bytes:
    """The same random bytes on every rank. Every rank must call it."""
    try:
        if launch.rank == 0:
            store.set("at/run", os.urandom(RUN_BYTES).hex())
        return _decoded(store.get("at/run"))
    except RuntimeError as error:
        text = "rank 0 exited before the run began; its output shows why"
        raise RunError(text, code=ExitCode.COMMUNICATION, is_shared=False) from error


def _takes_its_time(op: Op) -> bool:
    return op.stage is Stage.SAVE or not _TAKES_ITS_TIME.isdisjoint(op.effects().writes)


def _key(rank: int) -> str:
    return f"at/{rank}"


def _decoded(value: bytes) -> bytes:
    return bytes.fromhex(value.decode())


def _unknown_life(record: Whereabouts) -> str:
    return ""
