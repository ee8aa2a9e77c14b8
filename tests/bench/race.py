"""One rank of a race: planc's runtime and a script, blocks of steps in turn, in one process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from examples import by_hand, straightforward
from planc.cli.running.progress import RunDisplay
from planc.graph.graph import Graph, plan_hash
from planc.graph.op import Op
from planc.graph.ops import NextBatch
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Together
from planc.runtime.process import read_launch
from planc.runtime.ranks.reads import Entry
from planc.runtime.ranks.watch import Watch
from planc.runtime.run_directory.directory import RunDirectory
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.parallel.mesh import choose_device, connect
from planc.runtime.torch.run import Paths, Run
from tests.bench import ep_plan, pipelining, replicas, tp_plan
from tests.bench.shapes import SEQUENCE_LENGTH, Shape, script_sizes

BY_HAND: Mapping[str, Callable[[by_hand.Settings], Any]] = {
    "by_hand": by_hand.build,
    "tp_plan": tp_plan.build,
}
REPLICAS: Mapping[str, Callable[[by_hand.Settings], Any]] = {
    "ddp": replicas.build_ddp,
    "accelerate": replicas.build_accelerate,
    "trainer": replicas.build_trainer,
}
"""Their settings call the number of replicas `dp_shard`."""
PIPELINES: Mapping[str, Callable[[Any], nn.Module]] = {
    "pipelining": pipelining.ModelStage,
    "pipelining by layers": pipelining.Stage,
}


@dataclass(frozen=True, slots=True)
class Race:
    """`graph` has as many steps as all blocks together; `rival` is the script's name."""

    shape: Shape
    graph: Graph
    rival: str
    workspace: Path
    num_steps_a_block: int
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        """Of what the sides write."""
        return self.workspace / "runs" / f"{self.shape.name} {self.rival}"


@dataclass(frozen=True, slots=True)
class Block:
    """The seconds of a block of steps on this rank: wall clock, and CPU time."""

    wall_seconds: float
    processor_seconds: float


@dataclass(slots=True)
class Blocks:
    """Both sides' blocks on one rank, in the order of time; the first of each is for warming up."""

    planc: list[Block] = field(default_factory=list)
    rival: list[Block] = field(default_factory=list)


class Alternating(TorchBackend):
    """Runs a block of the rival's steps after every block of its own."""

    def __init__(self, run: Run, *, rival: Callable[[], None], num_steps_a_block: int) -> None:
        super().__init__(run)
        self.rival, self.num_steps_a_block = rival, num_steps_a_block
        self.blocks = Blocks()
        self.began = (0.0, 0.0)

    def execute(self, op: Op, position: Position) -> None:
        if isinstance(op, NextBatch) and (position.step - 1) % self.num_steps_a_block == 0:
            if position.step > 1:
                self.change()
            self.began = begin()
        super().execute(op, position)

    def change(self) -> None:
        """Ends the own block, and lets the rival run one."""
        self.blocks.planc.append(since(self.began))
        began = begin()
        for _ in range(self.num_steps_a_block):
            self.rival()
        self.blocks.rival.append(since(began))


def begin() -> tuple[float, float]:
    """Both clocks, once all ranks are here and their devices idle."""
    _await_device()
    dist.barrier()
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> Block:
    wall, processor = began
    _await_device()
    return Block(time.perf_counter() - wall, time.process_time() - processor)


def _await_device() -> None:
    """What one side leaves queued must not count as the other's."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def run_race(rank: int, world_size: int, race: Race) -> Blocks:
    """This rank's blocks. Both sides show every step; what they print goes to a file."""
    own = open_run(race, race.folder)
    rival = rival_step(race)
    backend = Alternating(own, rival=rival, num_steps_a_block=race.num_steps_a_block)
    with printed(race.folder, rank, own):
        run(race.graph, backend)
        backend.change()
    # The pool destroys the process group once all ranks are done: one that leaves first can leave another
    # waiting.
    return backend.blocks


@contextmanager
def printed(folder: Path, rank: int, own: Run | None = None) -> Iterator[None]:
    """What this rank prints goes to a file of `folder`; rank 0 shows every step of a run there."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"printed-{rank}").open("w") as stream, redirect_stdout(stream):
        if rank == 0 and own is not None:
            own.observer.observers.append(RunDisplay(RunDirectory(folder), stream=stream))
        yield


def open_run(race: Race, folder: Path) -> Run:
    """As `planc run` opens it under torchrun, with the watch over other ranks."""
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    launch = read_launch(os.environ)
    device = choose_device("gloo" if race.device == "cpu" else "nccl", launch)
    digest = plan_hash(race.graph)
    store = connect(
        launch, device=device, timeout_seconds=120, entries=(Entry("graph", "compiled plan", digest),)
    )
    folder.mkdir(parents=True, exist_ok=True)
    paths = Paths(base=race.workspace, run=folder)
    watch = None
    if launch.world_size > 1:
        watch = Watch(race.graph, launch, store=store, run_folder=folder)
    return Run(race.graph, digest, launch, paths, Together(), device, watch=watch)


def rival_step(race: Race) -> Callable[[], None]:
    """One step of the rival, on sequences of its own choice, with a line for it."""
    trainer = rival_trainer(race)
    num_sequences = (len(trainer.tokens) - 1) // SEQUENCE_LENGTH
    generator = torch.Generator().manual_seed(0)
    numbers = count(1)

    def step() -> None:
        ids = torch.randint(
            num_sequences, (race.shape.tokens_per_step // SEQUENCE_LENGTH,), generator=generator
        )
        loss = trainer.step(ids)
        if dist.get_rank() == 0:
            print(f"step {next(numbers)}  loss {loss:.4f}", flush=True)

    return step


def rival_trainer(race: Race) -> Any:
    """The script's own, with the plan's sizes."""
    sizes = script_sizes(race.shape, num_steps=race.graph.num_steps) | {"device": race.device}
    paths = {name: race.workspace / sizes.pop(name) for name in ("model", "text")}
    if race.rival in BY_HAND:
        return BY_HAND[race.rival](by_hand.Settings(**paths, **sizes))
    if race.rival == "ep_plan":
        return ep_plan.build(by_hand.Settings(**paths, **sizes), ep=race.shape.ep)
    whole = {name: size for name, size in sizes.items() if name not in race.shape.mesh}
    if race.rival in PIPELINES:
        return pipelining.build(by_hand.Settings(**paths, **whole), PIPELINES[race.rival])
    if race.rival in REPLICAS:
        return REPLICAS[race.rival](by_hand.Settings(**paths, **whole, dp_shard=race.shape.world_size))
    whole.pop("device")
    return straightforward.build(straightforward.Settings(**paths, **whole))
