"""One torchrun of the soaked run after another: its ranks' processes, what it printed, how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import signals
from tests.launch.processes import LAUNCHER_VARIABLES, ROOT

_POLL_SECONDS = 0.05
_START_SECONDS = 300
_END_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Run:
    """A plan for some ranks, and the folder that its launches share. It ends after a step before the plan's
    last if `stop_after` is set."""

    plan: Path
    folder: Path
    num_ranks: int
    stop_after: int | None = None

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def is_complete(self) -> bool:
        return self.status().get("state") in ("done", "stopped")

    def status(self) -> dict[str, Any]:
        """What status.json says; nothing before there is one."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "status.json").read_text(encoding="utf-8"))
        except OSError:
            return {}
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """A line a step; one that is being written is left out."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]


class Launch:
    """A torchrun under way."""

    def __init__(self, run: Run, *, log: Path) -> None:
        self.run, self.log, self.began = run, log, time.monotonic()
        inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        command = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        ranks = f"--nproc-per-node={run.num_ranks}"
        arguments = ["-m", "planc.run", str(run.plan), "--run-dir", str(run.folder)]
        if run.stop_after is not None:
            arguments += ["--stop-after", str(run.stop_after)]
        with log.open("wb") as file:
            self.agent = subprocess.Popen(
                (*command, ranks, *arguments),
                env=inherited | settings,
                stdout=file,
                stderr=file,
                preexec_fn=signals.reset,
            )

    def ranks(self) -> dict[int, int]:
        """The processes of ranks that are there, by rank."""
        found = {}
        for pid in children(self.agent.pid):
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                values = dict(one.partition(b"=")[::2] for one in variables)
                if b"RANK" in values:
                    found[int(values[b"RANK"])] = pid
        return found

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def trains(self) -> bool:
        """Whether a step has been done since the launch."""
        return any(line.startswith("step ") for line in self.said().splitlines())

    def wait_until(self, is_so: Callable[[], bool], *, seconds: float = _START_SECONDS) -> bool:
        """Whether something came to be before the launch ended, in time."""
        deadline = time.monotonic() + seconds
        while not (so := is_so()) and self.agent.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return so or is_so()

    def signal(self, number: signal.Signals, *ranks: int) -> None:
        """Sends a signal to some ranks, those of them that are there."""
        there = self.ranks()
        for rank in ranks:
            if rank in there:
                send(there[rank], number)

    def kill(self) -> None:
        """Kills torchrun, then every rank, as the loss of the machine would."""
        pids = self.ranks().values()
        send(self.agent.pid, signal.SIGKILL)
        for pid in pids:
            send(pid, signal.SIGKILL)
        self.agent.wait()

    def end(self) -> bool:
        """Waits until the launch has ended; False if it had to be killed."""
        try:
            self.agent.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children(pid: int) -> list[int]:
    """The processes that a process has started; none if it has ended."""
    found: list[int] = []
    # A thread of torchrun may have started them.
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.extend(int(one) for one in path.read_text().split())
    return found
