"""The position of each rank in a record of fixed size, cheap to write at every op, readable by the others."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.runtime.files.plain_files import create, read_bytes, remove

SIZE_BYTES = 512
RUN_BYTES = 8
_PLACE = struct.Struct("<8sIIIIIIId")
_HOST_AT, _MESSAGE_AT = 64, 128
_NO_OP = 2**32 - 1


class State(IntEnum):
    """The state of a rank, as it records it."""

    RUNNING = 0
    DONE = 1
    FAILED = 2
    """Ended by an error of its own."""
    CUT_OFF = 3
    """Ended because it lost another rank, or on request."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """One rank's record.

    `run` distinguishes its run from earlier ones in the same directory. `op` indexes `graph.ops()`, None
    before the first; `count` is the number of ops begun. `beat` grows while the process publishes. `since` is
    the time of day at which the op began, in seconds.
    """

    run: bytes
    state: State
    process: int
    beat: int
    count: int
    op: int | None
    step: int
    micro_step: int
    since: float
    host: str
    message: str = ""


class Board:
    """This rank's own record, rewritten at every op: into memory, or into a file that others map."""

    def __init__(self, graph: Graph, *, run: bytes, host: str, buffer: bytearray | mmap.mmap) -> None:
        assert len(run) == RUN_BYTES, "a longer one would be cut"
        self.buffer, self._run = buffer, run
        self._indices = {id(op): index for index, op in enumerate(graph.ops())}
        self._state, self._beat, self._count = State.RUNNING, 0, 0
        self._op, self._step, self._micro_step, self._since = _NO_OP, 0, 0, time.time()
        self._write_text(host, at=_HOST_AT, room=_MESSAGE_AT - _HOST_AT)
        self._write()

    def enter(self, op: Op, *, step: int, micro_step: int) -> None:
        """Record that an op begins."""
        self._op = self._indices.get(id(op), _NO_OP)
        self._step, self._micro_step, self._since = step, micro_step, time.time()
        self._count += 1
        self._write()

    def beat(self) -> bytes:
        """The record, with one more heartbeat."""
        self._beat += 1
        self._write()
        return bytes(self.buffer[:SIZE_BYTES])

    def end(self, state: State, *, message: str = "") -> None:
        """Record how the rank ended; the first call counts. RUNNING changes nothing."""
        if self._state is State.RUNNING and state is not State.RUNNING:
            self._write_text(message, at=_MESSAGE_AT, room=SIZE_BYTES - _MESSAGE_AT)
            self._state = state
            self._write()

    @property
    def record(self) -> Whereabouts:
        found = unpack(bytes(self.buffer[:SIZE_BYTES]))
        assert found is not None, "this process wrote it"
        return found

    def _write(self) -> None:
        place = (self._count % 2**32, self._op, self._step, self._micro_step, self._since)
        _PLACE.pack_into(self.buffer, 0, self._run, self._state, os.getpid(), self._beat, *place)

    def _write_text(self, text: str, *, at: int, room: int) -> None:
        encoded = text.encode()[: room - 1]
        self.buffer[at : at + room] = encoded + bytes(room - len(encoded))


def unpack(data: bytes) -> Whereabouts | None:
    """The record in a buffer; None if there isn't one."""
    if len(data) < SIZE_BYTES:
        return None
    run, state, process, beat, count, op, step, micro_step, since = _PLACE.unpack_from(data)
    if state not in tuple(State):
        return None
    return Whereabouts(
        run=run,
        state=State(state),
        process=process,
        beat=beat,
        count=count,
        op=None if op == _NO_OP else op,
        step=step,
        micro_step=micro_step,
        since=since,
        host=_text(data[_HOST_AT:_MESSAGE_AT]),
        message=_text(data[_MESSAGE_AT:SIZE_BYTES]),
    )


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Folder:
    """The records of ranks on one machine: a file per rank, mapped into memory."""

    path: Path

    def open(self, rank: int) -> mmap.mmap:
        """This rank's file, created empty, as an earlier run may have left one. OSError if that fails."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.file(rank)
        remove(file)
        with create(file) as opened:
            # With room of its own: on a full disk, a write through the map would end the process (SIGBUS).
            opened.write(bytes(SIZE_BYTES))
            opened.flush()
            return mmap.mmap(opened.fileno(), SIZE_BYTES)

    def read(self, num_ranks: int) -> Sequence[Whereabouts | None]:
        """The record of every rank; None if it has left none."""
        return [self._read(rank) for rank in range(num_ranks)]

    def remove(self, rank: int) -> None:
        """Remove this rank's file; the last rank removes the folder too."""
        self.file(rank).unlink(missing_ok=True)
        # While other ranks use it, it is not empty; two that leave at once both see it empty.
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _read(self, rank: int) -> Whereabouts | None:
        try:
            return unpack(read_bytes(self.file(rank), max_bytes=SIZE_BYTES))
        except OSError:
            return None

    def file(self, rank: int) -> Path:
        """Return the path of a rank's record."""
        return self.path / f"rank-{rank}"
