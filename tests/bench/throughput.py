"""Tokens a second of planc against scripts with the same parts: `python -m tests.bench.throughput`.

Both train the same model in the same processes, a block of steps each in turn, so whatever else the
machine does meets both. With a small model more of a step is the runtime's own; with a large one the
optimizer and the gradients' norm weigh as they do in practice.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from planc.verify.pool import run_ranks
from tests.bench.race import PIPELINES, REPLICAS, Block, Blocks, Race, run_race
from tests.bench.result import Result, put_result, report, write_results
from tests.bench.shapes import (
    AUTO,
    EXPERTS,
    LARGE,
    PIPELINED,
    REPLICATED,
    SHAPES,
    WHOLE,
    Shape,
    compile_shape,
    make_workspace,
)

SECTION = "throughput"
GOALS = {
    "by_hand": 0.99,
    "straightforward": 1.1,
    "tp_plan": 1.2,
    "ep_plan": 1.0,
    "ddp": 1.0,
    "accelerate": 1.05,
    "trainer": 1.05,
    "pipelining": 1.0,
    "pipelining by layers": 1.0,
}
TP_GOAL = 1.05
"""Of shapes with tp and the rival's rules: planc's edges move local tensors, others' dispatch DTensors."""
RACES = (
    *((shape, "by_hand") for shape in (*SHAPES, *LARGE)),
    *((shape, "tp_plan") for shape in AUTO),
    *((shape, "ep_plan") for shape in EXPERTS),
    *((shape, "straightforward") for shape in SHAPES if shape.mesh.keys() == {"dp_shard"}),
    *((shape, "straightforward") for shape in WHOLE),
    *((shape, rival) for shape in REPLICATED for rival in REPLICAS),
    *((shape, rival) for shape in PIPELINED for rival in PIPELINES),
)
NUM_BLOCKS = 100
"""Of each side; the first is for warming up. With four ranks on two CPUs, blocks differ by a twentieth:
so many give the ratio to a hundredth."""
NUM_LARGE_BLOCKS = 30
NUM_STEPS_A_BLOCK = 1
_NUM_RESAMPLES = 2000
_TIMEOUT_SECONDS = 500


@dataclass(frozen=True, slots=True)
class Seconds:
    """One block over all ranks: by the clock of rank 0, and the CPU time of all ranks."""

    wall: float
    processor: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """planc's tokens a second for one of the rival's, and its range in 95 of 100 such races."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def measure(
    shape: Shape, *, rival: str, workspace: Path, num_blocks: int = NUM_BLOCKS, device: str = "cpu"
) -> list[Blocks]:
    """Every rank's blocks. On `cuda` only by_hand can be the rival."""
    graph = compile_shape(shape, num_steps=num_blocks * NUM_STEPS_A_BLOCK, workspace=workspace)
    race = Race(shape, graph, rival, workspace, NUM_STEPS_A_BLOCK, device)
    return run_ranks(run_race, shape.world_size, race, init=False, timeout_seconds=_TIMEOUT_SECONDS)


def over_ranks(ranks: Sequence[Sequence[Block]]) -> list[Seconds]:
    """The blocks of one side after the first, each over all ranks."""
    together = list(zip(*ranks, strict=True))[1:]
    return [Seconds(of[0].wall_seconds, sum(block.processor_seconds for block in of)) for of in together]


def ratio(planc: Iterable[float], rival: Iterable[float]) -> Ratio:
    """Of the seconds of both sides' blocks.

    Its interval is the bootstrap's: of races made of adjacent pairs of blocks, drawn with replacement
    (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13).
    """
    pairs, random = list(zip(planc, rival, strict=True)), Random(0)
    again = sorted(_ratio(random.choices(pairs, k=len(pairs))) for _ in range(_NUM_RESAMPLES))
    return Ratio(_ratio(pairs), again[_NUM_RESAMPLES // 40], again[-_NUM_RESAMPLES // 40])


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    own, other = zip(*pairs, strict=True)
    return middle(other) / middle(own)


def middle(seconds: Iterable[float]) -> float:
    """The mean of the middle half, which no single disturbance moves: steadier than the median."""
    ordered = sorted(seconds)
    quarter = len(ordered) // 4
    return statistics.fmean(ordered[quarter : len(ordered) - quarter])


def race_name(shape: Shape, rival: str) -> str:
    """What its row is called."""
    return f"{shape.name}, {rival}"


def result(shape: Shape, *, rival: str, ranks: Sequence[Blocks]) -> Result:
    """The cells of a race in the table.

    The goal is for CPU time, which other work on the machine affects least.
    """
    planc, other = over_ranks([one.planc for one in ranks]), over_ranks([one.rival for one in ranks])
    wall = ratio((one.wall for one in planc), (one.wall for one in other))
    processor = ratio((one.processor for one in planc), (one.processor for one in other))
    tokens = shape.tokens_per_step * NUM_STEPS_A_BLOCK
    goal = TP_GOAL if "tp" in shape.mesh and shape.auto != "auto(solve)" else GOALS[rival]
    speeds = [tokens / middle(one.wall for one in side) for side in (planc, other)]
    return Result(
        name=race_name(shape, rival),
        cells=(f"{speeds[0]:,.0f}", f"{speeds[1]:,.0f}", str(wall), str(processor)),
        goal=f">= {goal}",
        is_met=processor.value >= goal,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, metavar="N", help="at most; rows of fewer are only printed")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="races whose name has all of these words"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: against by_hand only")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write these races there instead")
    arguments = parser.parse_args()
    results, names = [], [race_name(*race) for race in RACES]
    with TemporaryDirectory() as folder:
        workspace = make_workspace(Path(folder), with_large=True)
        for (shape, rival), name in zip(RACES, names, strict=True):
            if not all(word in name for word in arguments.only):
                continue
            num_blocks = NUM_LARGE_BLOCKS if shape.is_large else NUM_BLOCKS
            ranks = measure(
                shape,
                rival=rival,
                workspace=workspace,
                num_blocks=min(arguments.blocks or num_blocks, num_blocks),
                device=arguments.device,
            )
            results.append(result(shape, rival=rival, ranks=ranks))
            print(results[-1], flush=True)
            if arguments.output:
                write_results(SECTION, results, path=arguments.output)
            elif not arguments.blocks:
                # A row at a time: a whole run takes an hour, and may end early.
                put_result(SECTION, results[-1], names=names)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
