"""What `planc check --deep` costs in a process of its own, imports included, with nothing remembered.

`python -m tests.bench.rehearsal` prints for each plan the ranks of its world, wall-clock and CPU
seconds, and the peak memory. Seconds are those of this machine as busy as it is; CPU seconds are less
affected by other work.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

NUM_RUNS = 3


@dataclass(frozen=True, slots=True)
class Goal:
    plan: str
    seconds: float
    memory_gigabytes: float


GOALS = (
    Goal("plans/llama-3.1-8b.plan", seconds=10, memory_gigabytes=2),
    Goal("plans/llama-3.1-405b.plan", seconds=30, memory_gigabytes=2),
)


@dataclass(frozen=True, slots=True)
class Cost:
    wall_seconds: float
    processor_seconds: float
    peak_gigabytes: float


def measure(plan: str) -> Cost:
    """One run with an empty cache. CalledProcessError if the plan has findings."""
    with tempfile.TemporaryDirectory() as cache:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "planc", "check", plan, "--deep"],
            env={**os.environ, "PLANC_CACHE": cache},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Of all children so far the largest; later plans are larger.
    return Cost(wall, processor, after.ru_maxrss / 2**20)


def main() -> None:
    print(f"{'plan':28} {'wall s':>8} {'cpu s':>8} {'GB':>6}   goal")
    for goal in GOALS:
        costs = [measure(goal.plan) for _ in range(NUM_RUNS)]
        best = min(costs, key=lambda cost: cost.wall_seconds)
        is_met = best.wall_seconds <= goal.seconds and best.peak_gigabytes <= goal.memory_gigabytes
        print(
            f"{goal.plan:28} {best.wall_seconds:8.1f} {best.processor_seconds:8.1f} "
            f"{best.peak_gigabytes:6.2f}   {goal.seconds:.0f} s, {goal.memory_gigabytes:.0f} GB: "
            f"{'met' if is_met else 'not met'}"
        )


if __name__ == "__main__":
    main()
