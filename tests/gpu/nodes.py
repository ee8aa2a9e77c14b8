"""Start the ranks of one run on this machine: `python -m tests.gpu.nodes RANKS DEVICES LOGS -- ...`.

With a CUDA device for each rank, each takes its own. With fewer, every rank plays a node of its own on the
first device: NCCL refuses two ranks of one host on one device, but ranks that name different hosts it takes
for strangers, and they talk through sockets on the loopback interface.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.site import ROOT

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 30.0
_PORTS = (15_000, 30_000)
ONE_DEVICE = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
"""Only sockets work between ranks that pretend to be on different hosts."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run, by rank."""

    processes: tuple[subprocess.Popen[bytes], ...]

    def wait(self, deadline: float, *, grace_seconds: float = math.inf) -> list[int | None]:
        """The exit codes by rank; None for one killed at the deadline, or so long after a failure."""
        while any(one.poll() is None for one in self.processes) and time.monotonic() < deadline:
            if any(one.poll() for one in self.processes):
                deadline = min(deadline, time.monotonic() + grace_seconds)
            time.sleep(_POLL_SECONDS)
        codes = [one.poll() for one in self.processes]
        for one in self.processes:
            one.kill()
            one.wait()
        return codes

    def wait_until(self, is_so: Callable[[], bool], deadline: float) -> None:
        """Return when it is so. TimeoutError at the deadline, or when a rank ends before."""
        while not is_so():
            if time.monotonic() > deadline or any(one.poll() is not None for one in self.processes):
                raise TimeoutError("the ranks ended, or took too long")
            time.sleep(_POLL_SECONDS)

    def send(self, number: signal.Signals, *ranks: int) -> None:
        """Send a signal to these ranks."""
        for rank in ranks:
            self.processes[rank].send_signal(number)


def environment(rank: int, num_ranks: int, *, port: int, num_devices: int) -> dict[str, str]:
    """What torchrun would set for a rank, and what keeps ranks on this machine."""
    has_own = num_devices >= num_ranks
    found = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank if has_own else 0),
        "LOCAL_WORLD_SIZE": str(num_ranks if has_own else 1),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    return found if has_own else {**found, **ONE_DEVICE, "NCCL_HOSTID": f"node{rank}"}


def start(program: Sequence[str], num_ranks: int, *, logs: Path, num_devices: int) -> Ranks:
    """Start a Python program, with its arguments, on every rank; `logs` has a file for each."""
    logs.mkdir(parents=True, exist_ok=True)
    port, started = _free_port(), []
    for rank in range(num_ranks):
        variables = environment(rank, num_ranks, port=port, num_devices=num_devices)
        with (logs / f"rank-{rank}.log").open("ab") as log:
            argv = [sys.executable, *program]
            started.append(
                subprocess.Popen(argv, cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT)
            )
    return Ranks(tuple(started))


def _free_port() -> int:
    """A free port below those that systems give out, which other steps' connections would take meanwhile."""
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def main(argv: Sequence[str]) -> int:
    num_ranks, num_devices, logs = int(argv[0]), int(argv[1]), Path(argv[2])
    ranks = start(argv[4:], num_ranks, logs=logs, num_devices=num_devices)
    codes = ranks.wait(math.inf, grace_seconds=_GRACE_SECONDS)
    for rank, code in enumerate(codes):
        if code:
            lines = (logs / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace").splitlines()
            print(f"rank {rank} exited with {code}: {' '.join(lines[-12:])[-1500:]}", file=sys.stderr)
        elif code is None:
            print(f"rank {rank} had not ended {_GRACE_SECONDS:g} s after another failed", file=sys.stderr)
    return 0 if codes == [0] * num_ranks else next((one for one in codes if one), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
