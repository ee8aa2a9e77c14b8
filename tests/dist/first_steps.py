"""Runs that compare the collectives of their first step, and faults in what they send, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from planc.estimate.at_intervals import predictions
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import ClipGradients, NextBatch, SyncGradients
from planc.inventory.load import load_inventory
from planc.runtime.collectives import Predictions
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.reporting.first_step import FirstStep
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import ClippedGradients, Norm, SyncedGradients, Weights
from planc.vocab import MeshDim
from tests.dist.pool import run_ranks
from tests.parity.ranks import Task, open_run

Fault = Literal["one more", "no norm", "no sync", "huge gradients", "skipped on rank 1", "a log"]

SKIPPED: dict[Fault | None, type[Op]] = {"no norm": ClipGradients, "no sync": SyncGradients}


@dataclass(frozen=True, slots=True)
class Compared:
    """How a rank's run ended, and the steps in which it counted."""

    code: ExitCode | None
    message: str
    counted: tuple[int, ...]
    saved: tuple[str, ...]


class Faulty(TorchBackend):
    """Runs normally except for the fault, on every rank from a step on."""

    def __init__(self, run: Run, fault: Fault | None, *, since: int) -> None:
        super().__init__(run)
        self.fault, self.since = fault, since
        self.counted: list[int] = []

    def started(self, *, first_step: int) -> None:
        super().started(first_step=first_step)
        if self.fault == "one more":
            self.state[nn.Module].register_forward_pre_hook(self._send)

    def _send(self, *_: Any) -> None:
        dist.all_reduce(torch.zeros(3), group=self.state[Mesh].group(MeshDim.TP))

    def execute(self, op: Op, position: Position) -> None:
        first_step = self.instruments.first_step
        if isinstance(op, NextBatch) and first_step is not None and first_step.counts_steps:
            self.counted.append(position.step)
        if isinstance(op, SKIPPED.get(self.fault, ())):
            # Others read what it leaves.
            weights = self.state[Weights]
            self.state.put(SyncedGradients(weights))
            self.state.put(ClippedGradients(weights, None))
            self.state.put(Norm(torch.zeros((), dtype=torch.float64)))
            return
        if isinstance(op, ClipGradients) and self.fault == "huge gradients" and position.step < self.since:
            for parameter in self.state[nn.Module].parameters():
                assert parameter.grad is not None
                local_of(parameter.grad).mul_(1e30)
        super().execute(op, position)


def compared_rank(
    rank: int, world_size: int, task: Task, predicted: Sequence[Predictions], fault: Fault | None, since: int
) -> Compared:
    own_run = open_run(task, Observer())
    # Ranks can be started with different options.
    is_skipped = fault == "skipped on rank 1" and rank == 1
    own = {**predicted[rank], "log": {}} if fault == "a log" else predicted[rank]
    backend = Faulty(own_run, fault, since=since)
    backend.instruments.first_step = FirstStep(task.graph, None if is_skipped else own)
    code, message = None, ""
    try:
        run(task.graph, backend, stop_after=task.stop_after)
    except RunError as error:
        code, message = error.code, error.message
    # Rank 0 hosts the store, which the others must not lose before they have spoken.
    dist.destroy_process_group()
    saved = tuple(sorted(path.name for path in own_run.paths.checkpoints.glob("step-*")))
    return Compared(code, message, tuple(backend.counted), saved)


def predicted_of(graph: Graph, model: Path, *, rank: int = 0) -> Predictions:
    """What a run command predicts for a rank of a graph."""
    inventory = load_inventory(model, cache_dir=model.parent).inventory
    return predictions(graph, inventory, rank=rank, logs_sample_ids=True)


def run_compared(
    graph: Graph, model: Path, folder: Path, *, fault: Fault | None = None, since: int = 1, **task: Any
) -> Sequence[Compared]:
    """How the ranks of a run end that compares its first step."""
    task = {"stop_after": 2, **task}
    predicted = [predicted_of(graph, model, rank=rank) for rank in range(graph.world_size)]
    return run_ranks(
        compared_rank,
        graph.world_size,
        Task(graph, model.parent, folder, **task),
        predicted,
        fault,
        since,
        init=False,
    )
