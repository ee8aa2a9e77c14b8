"""What a step waits for: `python -m tests.bench.syncs` lists every wait of the host for the device.

Real steps of the real runtime, on a device in name only (see `fake_device`). A usual step logs, clips, is
guarded, has several micro-batches, and stands between two others of its kind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch.distributed as dist
from torch import nn

from planc.graph.op import Op
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer, StepMetrics
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.reporting.own_time import OwnTime
from planc.runtime.torch.run import Run
from planc.verify.pool import run_ranks
from planc.verify.ranks import Metrics, Task, open_run
from tests.bench.fake_device import DEVICE, FakeDevice, Wait
from tests.bench.result import Result, report, write_results
from tests.plans import checked, write_plan

SECTION = "syncs"
GOAL = 1
STEP = 3
"""The first step compares collectives, and the second may still allocate; the third is like all others."""
BeforeOp = Callable[[State, Op, Position], None]
_PLAN = """\
model {{
  hf = "models/tiny-llama"
}}

mesh {{
{mesh}}}
{parallel}
data {{
  source = text("*.txt")
  sequence_length = 64
  micro_batch = 1
  packing = {packing}
}}

optimizer {{
  kind = adamw(lr = 1e-3)
  clip_grad_norm = 1.0
}}

guard {{
  nonfinite = skip(at_most = 3)
  loss_spike = skip(deviations = 8.0, window = 5 steps, at_most = 3)
}}

train {{
  steps = 8
  tokens_per_step = {tokens}
  log_every = 1 step
  loss_chunks = {chunks}
}}
"""
_TP = """
tensor_parallel on tp {
  auto
}
"""
_CP = """
context_parallel on cp {
  rotate = ring
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}
"""
_FSDP = """
fsdp on dp_shard {
  "model.layers.*" -> unit
}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A mesh, and the blocks that use it."""

    sizes: Mapping[str, int]
    parallel: str = ""
    packing: str = "attend"
    chunks: int = 1

    @property
    def name(self) -> str:
        sizes = " · ".join(f"{name} {size}" for name, size in self.sizes.items() if size > 1) or "1 rank"
        more = (", isolated documents" * (self.packing == "isolate"), ", loss in parts" * (self.chunks > 1))
        return sizes + "".join(more)


CASES = (
    Case({"tp": 1}),
    Case({"dp_shard": 2}, _FSDP),
    Case({"dp_replicate": 2}),
    Case({"tp": 2}, _TP),
    Case({"cp": 2}, _CP.replace("ring", "allgather") + _FSDP.replace("dp_shard", "cp"), packing="isolate"),
    Case({"cp": 2}, _CP + _FSDP.replace("dp_shard", "cp"), chunks=4),
)


class Listening(TorchBackend):
    """Lists the waits of one step, and calls `before_op` before each of its ops."""

    def __init__(self, run: Run, device: FakeDevice, before_op: BeforeOp | None) -> None:
        super().__init__(run)
        self.fake, self.before_op = device, before_op

    def started(self, *, first_step: int) -> None:
        super().started(first_step=first_step)
        self.instruments.own_time = OwnTime(has_device_queue=True)

    def execute(self, op: Op, position: Position) -> None:
        self.fake.is_listing = position.step == STEP
        if self.before_op is not None:
            self.before_op(self.state, op, position)
        super().execute(op, position)


def waits_of_rank(
    rank: int, world_size: int, task: Task, before_op: BeforeOp | None
) -> tuple[list[Wait], list[StepMetrics]]:
    """The waits of a usual step on this rank, and the metrics of all steps."""
    metrics = Metrics()
    return train(task, metrics, before_op=before_op), metrics.steps


def train(task: Task, observer: Observer, *, before_op: BeforeOp | None = None) -> list[Wait]:
    """Train on the fake device, and return the waits of a usual step."""
    fake = FakeDevice()
    own = replace(open_run(task, observer), device=DEVICE, reports_sample_ids=False)
    own.__dict__["has_queue"] = True
    with fake.entered():
        backend = Listening(own, fake, before_op)
        run(task.graph, backend, stop_after=task.stop_after)
        astray = [name for name, one in backend.state[nn.Module].named_parameters() if not fake.has(one)]
    assert not astray, f"not on the device: {astray}"
    dist.destroy_process_group()
    return fake.waits


def task_of(case: Case, folder: Path) -> Task:
    """The run of a case, with its text in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("the mesh of ranks holds every weight once, and sums gradients. " * 400)
    mesh = "".join(f"  {name} = {size}\n" for name, size in case.sizes.items())
    num_dp = case.sizes.get("dp_shard", 1) * case.sizes.get("dp_replicate", 1)
    text = _PLAN.format(
        mesh=mesh,
        parallel=case.parallel,
        packing=case.packing,
        chunks=case.chunks,
        tokens=64 * 3 * num_dp,
    )
    graph = checked(write_plan(folder, text=text)).graph
    assert graph is not None
    return Task(graph, folder, folder / "run", stop_after=STEP + 1)


def waits(case: Case, folder: Path, *, before_op: BeforeOp | None = None) -> Sequence[Sequence[Wait]]:
    """The waits of a usual step, by rank."""
    task = task_of(case, folder)
    found = run_ranks(waits_of_rank, task.graph.world_size, task, before_op, init=False)
    return [waits for waits, _ in found]


def measure(folder: Path) -> list[Result]:
    """The rows, with every wait printed."""
    rows = []
    for case in CASES:
        by_rank = waits(case, folder / case.name)
        most = max(by_rank, key=len)
        print(f"{case.name}: {len(most)}", *most, sep="\n  ")
        rows.append(Result(case.name, (f"{len(most)}",), goal=f"{GOAL}", is_met=len(most) == GOAL))
    return rows


def main() -> int:
    with TemporaryDirectory() as folder:
        results = measure(Path(folder))
    write_results(SECTION, results)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
