"""What a signal or a lost rank does: `python -m tests.gpu.drills NAME DEVICES SECONDS OUT -- ARGS`.

Two ranks train until step 3 is logged. `stopped` sends SIGTERM to both, as schedulers do, resumes for
three more steps and trains one rank as far. `killed` sends SIGKILL to rank 1, and counts until rank 0 ends.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.nodes import Ranks, start

_STEPS_BEFORE, _STEPS_AFTER = 3, 3


@dataclass(frozen=True, slots=True)
class Drill:
    """`words` are the arguments of planc.run without the mesh, which is two ranks sharded, or one."""

    words: tuple[str, ...]
    out: Path
    deadline: float
    num_devices: int

    def start(self, folder: str, *more: str, num_ranks: int = 2) -> Ranks:
        program = ("-m", "planc.run", *self.words, "--run-dir", str(self.out / folder), *more)
        mesh = ("--set", f"mesh.dp_shard={num_ranks}")
        return start(
            (*program, *mesh), num_ranks, logs=self.out / f"{folder}.logs", num_devices=self.num_devices
        )

    def started(self, folder: str) -> Ranks:
        """Two ranks that have logged the first steps."""
        ranks = self.start(folder)
        log = self.out / folder / "metrics.jsonl"
        ranks.wait_until(lambda: log.exists() and _num_steps(log) >= _STEPS_BEFORE, self.deadline)
        return ranks

    def stopped(self) -> dict[str, Any]:
        ranks = self.started("stopped")
        sent = time.monotonic()
        ranks.send(signal.SIGTERM, 0, 1)
        codes = ranks.wait(self.deadline)
        seconds = time.monotonic() - sent
        status = json.loads((self.out / "stopped" / "status.json").read_text(encoding="utf-8"))
        last = str(int(status["step"]) + _STEPS_AFTER)
        resumed = self.start("stopped", "--stop-after", last).wait(self.deadline)
        whole = self.start("whole", "--stop-after", last, num_ranks=1).wait(self.deadline)
        found = {"codes": codes, "seconds": seconds, "step": status["step"], "state": status["state"]}
        return {**found, "resumed": resumed, "whole": whole}

    def killed(self) -> dict[str, Any]:
        ranks = self.started("killed")
        sent = time.monotonic()
        ranks.send(signal.SIGKILL, 1)
        codes = ranks.wait(self.deadline)
        return {"codes": codes, "seconds": time.monotonic() - sent}


def _num_steps(log: Path) -> int:
    return sum('"loss"' in line for line in log.read_text(encoding="utf-8").splitlines())


def main(argv: Sequence[str]) -> int:
    name, num_devices, seconds, out = argv[0], int(argv[1]), float(argv[2]), Path(argv[3])
    drill = Drill(tuple(argv[5:]), out, time.monotonic() + seconds, num_devices)
    found = drill.stopped() if name == "stopped" else drill.killed()
    (out / "drill.json").write_text(json.dumps(found), encoding="utf-8")
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
