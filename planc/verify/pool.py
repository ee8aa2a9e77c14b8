"""Run a function on several ranks of real gloo, each a process forked from a server that has imported torch.

Starting N interpreters costs N imports of torch and transformers; forking costs milliseconds. The server
starts with the first call and ends with the calling process.

Threads of one process, over torch's own threaded process group, start as quickly: 8 processes start in 0.4 s,
and the first 8 in 5 s, which is the import that threads need too. But threads share a random state and a
loss_parallel, so they would need other handlers than a run's. Processes run the real ones, on the same gloo
as a launch on CPUs.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

Result = TypeVar("Result")

PRELOADED = [
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
    "planc.runtime.torch.backend",
]
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_ONE_AT_A_TIME = threading.Lock()
GRACE_SECONDS = 1.0
"""The time after one rank's failure in which the others may still report theirs."""


class RankError(RuntimeError):
    """A rank raised or died. The message holds each such rank's number and traceback."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a rank's function."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank's traceback, or how its process ended."""

    text: str


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank as its parent sees it."""

    rank: int
    process: ForkServerProcess
    reports: Connection
    crash: Path


@dataclass(frozen=True, slots=True)
class Launch:
    """A rank's orders. `call` is the pickled (function, args); `store` is None if the function inits.

    The stacks of its threads go to `crash` if a signal such as SIGSEGV ends it.
    """

    rank: int
    world_size: int
    call: bytes
    store: Path | None
    crash: Path
    environment: Mapping[str, str]
    quiet: bool


def run_ranks(
    function: Callable[..., Result],
    world_size: int,
    *args: object,
    timeout_seconds: float = 120,
    init: bool = True,
    quiet: bool = False,
) -> list[Result]:
    """Return the results of `function(rank, world_size, *args)` on all ranks, in rank order.

    The function must be importable by name; arguments and results are pickled, tensors by value. With
    `init` a gloo process group of all ranks exists during the call; without, the function makes its own
    from RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. RankError if a rank raises or dies,
    TimeoutError after `timeout_seconds`; either way no rank is left running. Ranks see the environment this
    process had when the server started. The output of quiet ranks is discarded; errors are still reported.
    """
    call = pickle.dumps((function, args))
    ranks: list[RankProcess] = []
    with TemporaryDirectory(prefix="planc-ranks-") as directory, _reserved_port() as port:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
        store = Path(directory) / "store" if init else None
        try:
            for rank in range(world_size):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                environment = ENVIRONMENT | address | own
                crash = Path(directory) / f"crash-{rank}"
                ranks.append(_start(Launch(rank, world_size, call, store, crash, environment, quiet)))
            outcomes = _collect(ranks, timeout_seconds=timeout_seconds)
        finally:
            _stop(ranks)
    failures = [
        f"rank {rank} of {world_size} failed:\n{outcome.text}"
        for rank, outcome in outcomes.items()
        if isinstance(outcome, Failed)
    ]
    if failures:
        raise RankError("\n".join(failures))
    returned = {rank: outcome for rank, outcome in outcomes.items() if isinstance(outcome, Returned)}
    return [returned[rank].value for rank in range(world_size)]


def start_server() -> None:
    """Start the server from which ranks are forked, unless it runs; return before its imports are done."""
    _context()
    with _environment(ENVIRONMENT):
        forkserver.ensure_running()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """This process's environment with `values`, for the server to inherit: imports read some of them."""
    # Of two threads, the second would take the first one's values for what was there before.
    with _ONE_AT_A_TIME:
        before = dict(os.environ)
        os.environ.update(values)
        try:
            yield
        finally:
            for name in values:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    del os.environ[name]


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port on which ranks can listen, and which the system gives to no other process meanwhile.

    A port that is only looked up may be taken before rank 0 listens, even by a rank that waits for it: a
    connection to a closed port of this machine may get that same port as its own end.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        yield port


def _start(launch: Launch) -> RankProcess:
    start_server()
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_rank, args=(launch, sender))
    process.start()
    # The parent's copy must be closed, or a dead rank's pipe would never end.
    sender.close()
    return RankProcess(launch.rank, process, receiver, launch.crash)


def _run_rank(launch: Launch, reports: Connection) -> None:
    """The body of a rank's process: reports exactly one pickled outcome."""
    # Stays open until the process ends.
    faulthandler.enable(launch.crash.open("w", encoding="utf-8"))
    # A collection would go through all that the server has imported, and copy its pages.
    gc.freeze()
    os.environ.update(launch.environment)
    torch.set_num_threads(1)
    if launch.quiet:
        _silence()
    try:
        if launch.store is not None:
            method = f"file://{launch.store}"
            dist.init_process_group(
                "gloo", init_method=method, rank=launch.rank, world_size=launch.world_size
            )
        # Written by the process that started this one, and from no other source.
        function, args = pickle.loads(launch.call)
        report = pickle.dumps(Returned(function(launch.rank, launch.world_size, *args)))
    except BaseException:
        reports.send_bytes(pickle.dumps(Failed(traceback.format_exc())))
        return
    reports.send_bytes(report)
    if dist.is_initialized():
        # A rank that leaves early would break the collectives that others still finish.
        dist.barrier()
        dist.destroy_process_group()


def _silence() -> None:
    """Discard this process's output, including that of libraries."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _collect(ranks: list[RankProcess], *, timeout_seconds: float) -> dict[int, Returned | Failed]:
    """Each rank's outcome in order of arrival; after a failure, only those within the grace period.

    Ranks that have all reported get a moment to exit by themselves.
    """
    outcomes: dict[int, Returned | Failed] = {}
    waiting = {rank.reports: rank for rank in ranks}
    deadline = time.monotonic() + timeout_seconds
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        failed = any(isinstance(outcome, Failed) for outcome in outcomes.values())
        if not ready and failed:
            return outcomes
        if not ready:
            late = ", ".join(str(rank.rank) for rank in waiting.values())
            raise TimeoutError(f"rank {late} of {len(ranks)} did not finish within {timeout_seconds} seconds")
        for connection in ready:
            rank = waiting.pop(cast(Connection, connection))
            outcome = outcomes[rank.rank] = _outcome(rank)
            if isinstance(outcome, Failed):
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    for rank in ranks:
        rank.process.join(GRACE_SECONDS)
    return outcomes


def _outcome(rank: RankProcess) -> Returned | Failed:
    try:
        outcome: Returned | Failed = pickle.loads(rank.reports.recv_bytes())
        return outcome
    except EOFError:
        rank.process.join()
        stacks = rank.crash.read_text(encoding="utf-8") if rank.crash.exists() else ""
        return Failed(f"the process ended without a report, exit code {rank.process.exitcode}\n{stacks}")


def _stop(ranks: list[RankProcess]) -> None:
    """End those of these ranks that still run, and nothing else."""
    for rank in ranks:
        if rank.process.is_alive():
            rank.process.kill()
    for rank in ranks:
        rank.process.join()
        rank.reports.close()
