"""What a rank holds and sends, of planc and of each rival alone: `python -m tests.bench.footprint`.

The rivals and shapes are those of `tests.bench.throughput`. There both sides share processes; here each has
processes of its own, for a few steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch.distributed as dist

from planc.graph.op import Op
from planc.graph.ops import NextBatch
from planc.runtime.interpreter import Position, run
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.run import Run
from planc.verify.pool import run_ranks
from tests.bench.meter import Footprint, Meter, return_freed_memory
from tests.bench.race import BY_HAND, PIPELINES, REPLICAS, Race, open_run, printed, rival_step
from tests.bench.result import Result, put_result, report
from tests.bench.shapes import Shape, compile_shape, make_workspace
from tests.bench.throughput import RACES, race_name

SECTION = "footprint"
PLANC = "planc"
MOST = 1.10
"""planc's peak for one of a rival's."""
SAME_SHARDING = (*BY_HAND, "ep_plan", *REPLICAS, *PIPELINES)
"""Rivals that hold the same shards on every rank, so that planc must hold no more."""
NUM_WARM_UP, NUM_STEPS = 1, 2
_PLANNED_STEPS = 100
"""A schedule needs more steps than its warmup has; most don't run."""
_TIMEOUT_SECONDS = 500


@dataclass(frozen=True, slots=True)
class Side:
    """Over all ranks: the peak of the one that holds most, and what each sends in a step, on average."""

    peak_bytes: int
    sent_bytes: float


class Metered(TorchBackend):
    """Tells a meter when a step begins."""

    def __init__(self, run: Run, meter: Meter) -> None:
        super().__init__(run)
        self.meter = meter

    def execute(self, op: Op, position: Position) -> None:
        if isinstance(op, NextBatch):
            self.meter.begins(position.step)
        super().execute(op, position)


def run_alone(rank: int, world_size: int, race: Race) -> Footprint:
    """This rank's footprint where the only side is `race.rival`, which may be planc."""
    return_freed_memory()
    meter = Meter(NUM_WARM_UP, NUM_STEPS)
    if race.rival == PLANC:
        own = open_run(race, race.folder)
        with printed(race.folder, rank, own):
            run(race.graph, Metered(own, meter), stop_after=meter.last_step)
    else:
        dist.init_process_group("gloo")
        with printed(race.folder, rank):
            step = rival_step(race)
            for number in range(1, meter.last_step + 1):
                meter.begins(number)
                step()
    # The process group stays, as in a race.
    assert meter.footprint is not None
    return meter.footprint


def measure(shape: Shape, *, side: str, workspace: Path) -> Side:
    """The footprint of `side`, planc or a rival, in new processes."""
    graph = compile_shape(shape, num_steps=_PLANNED_STEPS, workspace=workspace)
    race = Race(shape, graph, side, workspace, num_steps_a_block=1)
    ranks = run_ranks(run_alone, shape.world_size, race, init=False, timeout_seconds=_TIMEOUT_SECONDS)
    sent = statistics.fmean(one.sent_bytes for one in ranks) / NUM_STEPS
    return Side(max(one.peak_bytes for one in ranks), sent)


def result(shape: Shape, *, rival: str, planc: Side, other: Side) -> Result:
    """The row of a shape and a rival."""
    has_goal = rival in SAME_SHARDING
    memory = (f"{one.peak_bytes / 1e6:,.0f}" for one in (planc, other))
    sent = (f"{one.sent_bytes / 1e6:,.2f}" for one in (planc, other))
    return Result(
        name=race_name(shape, rival),
        cells=(*memory, *sent),
        goal=f"<= {MOST:.2f} of its MB" if has_goal else "",
        is_met=not has_goal or planc.peak_bytes <= MOST * other.peak_bytes,
    )


def measure_all(races: Sequence[tuple[Shape, str]], *, workspace: Path) -> Iterator[Result]:
    """A row for each race. planc is measured once for each shape."""
    own: dict[str, Side] = {}
    for shape, rival in races:
        if shape.name not in own:
            own[shape.name] = measure(shape, side=PLANC, workspace=workspace)
        other = measure(shape, side=rival, workspace=workspace)
        yield result(shape, rival=rival, planc=own[shape.name], other=other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="rows whose name has these words"
    )
    arguments = parser.parse_args()
    names = [race_name(*race) for race in RACES]
    chosen = (all(word in name for word in arguments.only) for name in names)
    races = [*compress(RACES, chosen)]
    results = []
    with TemporaryDirectory() as folder:
        workspace = make_workspace(Path(folder), with_large=True)
        for row in measure_all(races, workspace=workspace):
            results.append(row)
            print(row, flush=True)
            put_result(SECTION, row, names=names)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
