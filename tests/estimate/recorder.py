"""What one rank really sends: the collectives of one training step, seen below DTensor and FSDP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from planc.graph.op import Op
from planc.graph.ops import Backward, Forward, StepOptimizer
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.parallel.collectives import Call, CollectiveRecorder
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.run import Run
from tests.parity.ranks import Task, open_run


@dataclass(frozen=True, slots=True)
class Saved:
    """The storages that one forward keeps for backward, by address. Integers are indices, and left out."""

    storages: dict[int, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    """(shape, bytes)."""
    alive: list[Tensor] = field(default_factory=list)
    """Held, so that no address is given twice."""

    def keep(self, tensor: Tensor) -> Tensor:
        local = local_of(tensor)
        if isinstance(local, AsyncCollectiveTensor):
            local = local.trigger_wait()
        if local.is_floating_point():
            storage = local.untyped_storage()
            self.storages[storage.data_ptr()] = tuple(local.shape), storage.nbytes()
            self.alive.append(local)
        return tensor


@dataclass(frozen=True, slots=True)
class Recorded:
    """One rank's second step, and what it holds after it."""

    calls: Mapping[str, Counter[Call]]
    """By the graph op that made them."""
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    unreduced_bytes: int
    """Gradients between two micro steps; 0 without any."""
    saved: tuple[tuple[tuple[int, ...], int], ...]
    """(shape, bytes) of what the first forward saves, weights among it."""


class Recording(TorchBackend):
    """Runs as ever, and listens to the second step: the first one makes the optimizer's state."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.calls: dict[str, Counter[Call]] = {}
        self.gradient_bytes = 0
        self.saved = Saved()
        self.unreduced_bytes = 0

    def execute(self, op: Op, position: Position) -> None:
        if position.step != 2:
            super().execute(op, position)
            return
        if isinstance(op, StepOptimizer):
            self.gradient_bytes = _bytes_of(p.grad for p in self.state[nn.Module].parameters())
        is_first_forward = isinstance(op, Forward) and position.micro_step == 0
        hooks = saved_tensors_hooks(self.saved.keep, lambda tensor: tensor)
        with CollectiveRecorder() as recorder, hooks if is_first_forward else nullcontext():
            super().execute(op, position)
        self.calls.setdefault(op.name, Counter()).update(recorder.calls)
        if isinstance(op, Backward) and not position.is_last_micro_step:
            self.unreduced_bytes = _unreduced_bytes(self.state[nn.Module])


def _bytes_of(tensors: Iterable[Tensor | None]) -> int:
    local = [local_of(tensor) for tensor in tensors if tensor is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def _unreduced_bytes(model: nn.Module) -> int:
    """Gradients that FSDP holds between micro steps, which no public attribute shows."""
    groups = (
        module._get_fsdp_state()._fsdp_param_group
        for module in model.modules()
        if isinstance(module, FSDPModule)
    )
    # The modules of one unit share a group.
    held = [parameter for group in dict.fromkeys(groups) if group for parameter in group.fsdp_params]
    return _bytes_of(
        gradient
        for parameter in held
        for gradient in (parameter.unsharded_accumulated_grad, parameter.unsharded_param.grad)
    )


def record_rank(rank: int, world_size: int, task: Task) -> Recorded:
    """What this rank sends in the second step, and what it holds then."""
    backend = Recording(open_run(task, Observer()))
    run(task.graph, backend, stop_after=2)
    states = backend.state[Optimizer].state.values()
    recorded = Recorded(
        calls=backend.calls,
        parameter_bytes=_bytes_of(backend.state[nn.Module].parameters()),
        gradient_bytes=backend.gradient_bytes,
        optimizer_bytes=_bytes_of(tensor for state in states for tensor in state.values()),
        unreduced_bytes=backend.unreduced_bytes,
        saved=tuple(backend.saved.storages.values()),
    )
    dist.destroy_process_group()
    return recorded
