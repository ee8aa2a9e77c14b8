"""Ranks that may die: processes forked from a server that has imported torch, and how each of them ended."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests import signals
from tests.dist.pool import start_server
from tests.patience import WAIT_SECONDS, unhurried

TIMEOUT_SECONDS = unhurried(10)
"""Of the ranks' process group: so long a rank may wait for one that is dead."""
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank ended: what its function returned, or the error's class and message, or a signal.

    `code` is the process's exit code, `-9` after SIGKILL; `seconds` since the ranks were started.
    """

    rank: int
    code: int | None
    value: Any
    error: str
    message: str
    seconds: float

    @property
    def was_killed(self) -> bool:
        return self.code == -9

    @property
    def has_hung(self) -> bool:
        """It had to be ended from outside."""
        return self.code is None


@dataclass(frozen=True, slots=True)
class Death:
    """SIGKILL of some ranks from outside, `seconds` after a file has appeared."""

    ranks: tuple[int, ...]
    after: Path
    seconds: float


def endings(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    group: bool = True,
    environment: Mapping[str, str] | None = None,
    death: Death | None = None,
    limit_seconds: float = WAIT_SECONDS,
) -> tuple[Ending, ...]:
    """Every rank's ending, in rank order, of `function(rank, world_size, *arguments)`.

    With `group` the ranks share a process group of gloo. A rank still there after `limit_seconds` is ended.
    """
    start_server()
    context = get_context("forkserver")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planc-faults-") as folder:
        store = Path(folder) / "store" if group else None
        started = {}
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            settings = {**ENVIRONMENT, **(environment or {}), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = context.Process(
                target=_rank, args=(rank, world_size, store, settings, sender, function, arguments)
            )
            process.start()
            sender.close()
            started[receiver] = (rank, process)
        processes = [process for _, process in started.values()]
        if death is not None:
            threading.Thread(target=_kill, args=(death, processes), daemon=True).start()
        found = {}
        waiting = dict(started)
        while waiting and (ready := wait(list(waiting), timeout=began + limit_seconds - time.monotonic())):
            for receiver in ready:
                assert isinstance(receiver, Connection)
                rank, process = waiting.pop(receiver)
                found[rank] = _ending(rank, process, receiver, began=began)
        for rank, process in waiting.values():
            process.kill()
            process.join()
            found[rank] = Ending(rank, None, None, "", "", time.monotonic() - began)
    return tuple(found[rank] for rank in range(world_size))


def _ending(rank: int, process: ForkServerProcess, receiver: Connection, *, began: float) -> Ending:
    """Of a rank that has reported, or has closed its pipe by dying."""
    with receiver:
        try:
            value, error, message = receiver.recv()
        except EOFError:
            value, error, message = None, "", ""
    seconds = time.monotonic() - began
    process.join()
    return Ending(rank, process.exitcode, value, error, message, seconds)


def _kill(death: Death, processes: Sequence[ForkServerProcess]) -> None:
    while not death.after.exists():
        if not any(process.is_alive() for process in processes):
            return
        time.sleep(0.002)
    time.sleep(death.seconds)
    for rank in death.ranks:
        if processes[rank].is_alive():
            processes[rank].kill()


def _rank(
    rank: int,
    world_size: int,
    store: Path | None,
    environment: Mapping[str, str],
    sender: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    signals.reset()
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        if store is not None:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=TIMEOUT_SECONDS),
            )
        value = function(rank, world_size, *arguments)
        report = (value, "", "")
    except BaseException as error:
        report = (None, type(error).__name__, str(error))
    sender.send(report)
    # A broken group's threads could keep a process from ending.
    os._exit(0)
