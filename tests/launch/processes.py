"""Starts runs as users do: real processes, what they print, what they return."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.forked import run_forked
from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TP_SIZE",
    "DP_SIZE",
    "CP_SIZE",
    "GLOO_SOCKET_IFNAME",
    "LOCAL_WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
)

_FORKED = ("planc.run", "tests.launch.faulty_run")
_READ_LATE = (*LAUNCHER_VARIABLES, "FAULT", "FILLED")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended; `seconds` is its wall time."""

    code: int
    stdout: str
    stderr: str
    seconds: float


def start(
    *command: str, environment: Mapping[str, str] | None = None, first_on_path: Path | None = None
) -> Outcome:
    """A command run to its end, without what this process inherited from a launcher.

    A run of planc is forked from a process that has imported torch, unless the environment has more than a
    launcher's variables and faults, which libraries may read when they are imported.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = os.pathsep.join(str(folder) for folder in (first_on_path, ROOT) if folder)
    settings = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **(environment or {})}
    began = time.monotonic()
    reads_nothing_early = first_on_path is None and set(environment or ()) <= set(_READ_LATE)
    if command[:2] == (sys.executable, "-m") and command[2] in _FORKED and reads_nothing_early:
        forked = run_forked(command[2], command[3:], environment=inherited | settings)
        return Outcome(forked.code, forked.stdout, forked.stderr, time.monotonic() - began)
    done = subprocess.run(
        command, env=inherited | settings, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    return Outcome(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def without_torch(*arguments: str, no_torch: Path, environment: Mapping[str, str] | None = None) -> Outcome:
    """`python -m planc.run` where importing torch would end it."""
    return start(
        sys.executable, "-m", "planc.run", *arguments, environment=environment, first_on_path=no_torch
    )


def torchrun(num_ranks: int, *arguments: str) -> Outcome:
    launcher = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={num_ranks}",
    )
    return start(*launcher, "-m", "planc.run", *arguments)


_RESERVED: deque[socket.socket] = deque(maxlen=64)


def free_port() -> int:
    """A port on which a run can listen, and which no process is given before 64 more were reserved."""
    reserved = socket.socket()
    _RESERVED.append(reserved)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port: int = reserved.getsockname()[1]
    return port


def without_torchrun(*commands: tuple[str, ...]) -> list[Outcome]:
    """One process a rank, as a cluster's own launcher starts them; `commands` holds each rank's arguments."""
    world = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def start_rank(rank: int) -> Outcome:
        environment = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        return start(sys.executable, "-m", "planc.run", *commands[rank], environment=environment)

    with ThreadPoolExecutor(len(commands)) as threads:
        return list(threads.map(start_rank, range(len(commands))))
