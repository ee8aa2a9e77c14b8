"""SIGKILL at every step of a load, on the mesh that saved and on another: the checkpoint stays as it is."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planc.runtime.checkpoint_format import part_files, verify
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.torch.checkpoint import chunks, load
from tests.faults.judge import checkpoints_problem, survivors_problem
from tests.faults.outcome import Injection, Row
from tests.faults.power import file_digests
from tests.faults.ranks import Ending, endings
from tests.faults.state import Digests, build, expected, fill, saved_root

WORLD_SIZE = 2
STEP = 1


class _Countdown:
    """Kills its process at the `at`-th event; 0 only counts."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def tick(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: Any, name: str) -> None:
        """Counts each call of `owner.name`."""
        real = getattr(owner, name)

        def ticked(*arguments: Any, **options: Any) -> Any:
            self.tick()
            return real(*arguments, **options)

        setattr(owner, name, ticked)


def load_counted(rank: int, world_size: int, root: Path, killed: int, at: int) -> int:
    """A rank's part in a load in which rank `killed` dies at its `at`-th event: how many events it had."""
    state = build(world_size=world_size)
    fill(state, step=99)
    countdown = _Countdown(at if rank == killed else 0)
    countdown.before(verify, "open_beneath")
    countdown.before(part_files, "open_beneath")
    countdown.before(part_files, "open_unbuffered")
    countdown.before(part_files, "sha256_of")
    countdown.before(chunks, "open_beneath")
    countdown.before(chunks.ChunkReader, "copy")
    load(state, directory=step_directory(root, step=STEP))
    return countdown.count


def resume_rows(folder: Path, *, every: int = 1) -> tuple[Row, Row]:
    """Loads on two ranks of what two ranks saved, and of what one saved; each `every`-th death."""
    known = {STEP: expected(STEP)}
    rows = []
    for world_size, fault in ((WORLD_SIZE, "resume"), (1, "resharding from 1 rank to 2")):
        root = saved_root(folder / f"from-{world_size}", world_size=world_size)
        injections = tuple(_deaths(root, known=known, every=every))
        rows.append(
            Row(
                "30",
                f"SIGKILL at every open, read and copy of a {fault}, on each of 2 ranks",
                "peers end with an error in time; no byte of the checkpoint changes; a second load is exact",
                injections,
            )
        )
        shutil.rmtree(root)
    return rows[0], rows[1]


def _deaths(root: Path, *, known: Mapping[int, Digests], every: int) -> Iterator[Injection]:
    directory = step_directory(root, step=STEP)
    before = file_digests(directory)
    counts = [ending.value for ending in _load(root, killed=0, at=0)]
    instants = [(rank, at) for rank, count in enumerate(counts) for at in range(1, count + 1)]
    for rank, at in instants[::every]:
        found = _load(root, killed=rank, at=at)
        began = time.monotonic()
        problem = survivors_problem(found, killed=rank)
        if not problem and file_digests(directory) != before:
            problem = "files of the checkpoint have changed"
        problem = problem or checkpoints_problem(root, known=known)
        yield Injection(f"rank {rank}, event {at} of {counts[rank]}", problem, time.monotonic() - began)


def _load(root: Path, *, killed: int, at: int) -> tuple[Ending, ...]:
    return endings(load_counted, WORLD_SIZE, root, killed, at)
