"""Two ranks of which one does something bad, started without torchrun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.launch.processes import Outcome, free_port, start

PYTHON = sys.executable
FAULTY = ("-m", "tests.launch.faulty_run")


def run_faulty(plan: Path, folder: Path, *, fault: str, more: Sequence[str] = ()) -> list[Outcome]:
    """How the two ranks end, started as mpirun would, so that nobody ends one for the other's sake."""
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "FAULT": fault}
    world["MASTER_PORT"] = str(free_port())

    def start_rank(rank: int) -> Outcome:
        environment = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = (PYTHON, *FAULTY, str(plan), "--run-dir", str(folder), *more)
        return start(*command, environment=environment)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(start_rank, range(2)))
