"""What one real rank allocates in a step, as PyTorch's CPU allocator reports it."""

from __future__ import annotations

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from planc.graph.op import Op
from planc.graph.ops import Backward, Forward
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.run import Run
from tests.parity.ranks import Task, open_run


class Allocating(TorchBackend):
    """Runs as ever, and follows what the second step's forward, loss and backward allocate and free."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def execute(self, op: Op, position: Position) -> None:
        is_measured = position.step == 2
        if is_measured and isinstance(op, Forward):
            self.profile.start()
        super().execute(op, position)
        if is_measured and isinstance(op, Backward):
            self.profile.stop()


def peak_growth(rank: int, world_size: int, task: Task) -> int:
    """The most bytes that the second step's forward to backward held beyond what was there before it."""
    backend = Allocating(open_run(task, Observer()))
    run(task.graph, backend, stop_after=2)
    dist.destroy_process_group()
    events = backend.profile.profiler.kineto_results.events()
    changes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    held = peak = 0
    for _, num_bytes in changes:
        held += num_bytes
        peak = max(peak, held)
    return peak
