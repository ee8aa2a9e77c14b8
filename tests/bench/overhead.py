"""What a step costs beyond its ops: `python -m tests.bench.overhead` prints microseconds of CPU time.

First the interpretation of the graph alone, on a backend that does nothing; then with all that the torch
backend does around its handlers: the clock of phases, and the record of where the rank is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from planc.graph.graph import Graph, plan_hash
from planc.graph.op import Op
from planc.graph.ops import Log
from planc.runtime.interpreter import Backend, Position, run
from planc.runtime.observer import Together
from planc.runtime.process import Launch
from planc.runtime.ranks.watch import Watch
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.dispatch import Call
from planc.runtime.torch.reporting.instruments import Instruments
from planc.runtime.torch.run import Paths, Run
from planc.runtime.torch.state import Batch
from tests.bench.result import Result, report, write_results
from tests.null_backend import NullBackend
from tests.plans import QUICKSTART, checked

SECTION = "overhead"
NUM_STEPS = 2000
NUM_RUNS = 5
GOALS = {"interpreter": 50.0, "and the torch backend without its handlers": 200.0}


class Idle(NullBackend):
    """Does nothing, and records nothing either."""

    def execute(self, op: Op, position: Position) -> None: ...


def microseconds(graph: Graph, make: Callable[[], Backend]) -> float:
    """The lowest CPU time per step of several runs, in microseconds."""
    found = []
    for _ in range(NUM_RUNS):
        backend = make()
        began = time.process_time()
        run(graph, backend)
        found.append((time.process_time() - began) / graph.num_steps * 1e6)
    return min(found)


def _read_clock(run: Run, op: Log, at: Position, instruments: Instruments, *given: Any) -> None:
    instruments.clock.read()


def _handler_of(kind: type[Op], call: Call) -> Callable[..., Any]:
    """Of what an op's handler does, what it does with the clock, and nothing else."""
    result = (None,) * len(call.gives) if call.is_tuple else None
    return _read_clock if kind is Log else lambda *_: result


def torch_backend(graph: Graph, folder: Path) -> TorchBackend:
    """Rank 0 of the graph's world, on one machine, as `planc run` makes it."""
    launch = Launch(world_size=graph.world_size, local_world_size=graph.world_size)
    paths = Paths(base=folder, run=folder)
    watch = Watch(graph, launch, store=HashStore(), run_folder=folder)
    run = Run(graph, plan_hash(graph), launch, paths, Together(), torch.device("cpu"), watch=watch)
    backend = Handless(run)
    backend.stopping.has_asked = True  # no stop request, as summed with metrics
    return backend


class Handless(TorchBackend):
    """Dispatches ops by their declarations, to handlers that do nothing."""

    handlers: Mapping[type[Op], Call] = {
        kind: replace(call, handler=_handler_of(kind, call)) for kind, call in TorchBackend.handlers.items()
    }

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.state.values[Batch] = Batch(())
        self.state.values[nn.Module] = nn.Module()


def measure() -> list[Result]:
    """The rows, for the quickstart's graph without its saves."""
    graph = checked(QUICKSTART).graph
    assert graph is not None
    graph = replace(graph, num_steps=NUM_STEPS, save=())
    with TemporaryDirectory() as folder:
        found = (
            microseconds(graph, Idle),
            microseconds(graph, lambda: torch_backend(graph, Path(folder))),
        )
    return [
        Result(name, (f"{cost:.0f}",), goal=f"<= {goal:.0f}", is_met=cost <= goal)
        for (name, goal), cost in zip(GOALS.items(), found, strict=True)
    ]


def main() -> int:
    results = measure()
    for one in results:
        print(one)
    write_results(SECTION, results)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
