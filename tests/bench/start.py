"""From torchrun to the first step, part by part: `python -m tests.bench.start`.

CPU seconds, the mean of all ranks, for planc on 4 ranks, compared with the imports that any
script with FSDP2, tensor parallelism and transformers' models must make, and the same start of
examples/by_hand.py.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.result import Result, report, write_results
from tests.bench.shapes import Shape, make_workspace, plan_text, script_sizes
from tests.bench.start_rank import PARTS, PLAN, SIZES
from tests.patience import WAIT_SECONDS

SECTION = "start"
SHAPE = Shape({"dp_shard": 2, "tp": 2})
NUM_RUNS = 2
GOAL_OVER_FLOOR_SECONDS = 2.0
"""What planc may take after the imports: compile the plan, start the group, build, shard and load the
model, read the data, and the first step."""
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start(way: str, folder: Path) -> dict[str, float]:
    """CPU seconds by part, the mean of all ranks; `wall` until the slowest rank's first step."""
    for old in folder.glob("marks-*"):
        old.unlink()
    began = time.time()
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(SHAPE.world_size), "-m", "tests.bench.start_rank", way, str(folder)),
        ],
        check=True,
        env={**os.environ, **_ENVIRONMENT},
        stdout=subprocess.DEVNULL,
        timeout=WAIT_SECONDS,
    )
    ranks = [json.loads(path.read_text()) for path in folder.glob("marks-*")]
    assert len(ranks) == SHAPE.world_size, "every rank leaves its marks"
    parts = {name: statistics.mean(one["parts"].get(name, 0.0) for one in ranks) for name in PARTS}
    return {**parts, "wall": max(one["ended"] for one in ranks) - began}


def make_folder(folder: Path) -> None:
    """The plan, the same as settings of the script, and what both read."""
    make_workspace(folder)
    (folder / PLAN).write_text(plan_text(SHAPE, num_steps=100), encoding="utf-8")
    sizes = script_sizes(SHAPE, num_steps=100)
    (folder / SIZES).write_text(json.dumps(sizes), encoding="utf-8")


def cheapest(way: str, folder: Path) -> dict[str, float]:
    """The run of several with the least CPU time."""
    runs = [start(way, folder) for _ in range(NUM_RUNS)]
    return min(runs, key=busy)


def busy(parts: dict[str, float]) -> float:
    return sum(parts[name] for name in PARTS)


def main() -> int:
    with TemporaryDirectory() as name:
        make_folder(Path(name))
        found = {way: cheapest(way, Path(name)) for way in ("floor", "by_hand", "planc")}
    limit = busy(found["floor"]) + GOAL_OVER_FLOOR_SECONDS
    results = [
        Result(
            name=way,
            cells=(
                f"{parts['wall']:.1f}",
                f"{busy(parts):.2f}",
                *(f"{parts[part]:.2f}" for part in PARTS),
            ),
            goal=f"<= {limit:.2f} s" if way == "planc" else "",
            is_met=way != "planc" or busy(parts) <= limit,
        )
        for way, parts in found.items()
    ]
    print(f"{SHAPE.name}: wall, busy, {', '.join(PARTS)}")
    for one in results:
        print(one)
    write_results(SECTION, results)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
