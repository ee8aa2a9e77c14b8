"""Runs whose numbers go wrong on rank 1: what each rank tells of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from planc.graph.op import Op
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import StepMetrics
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import History, Loss
from planc.runtime.torch.training.step_loss import StepLoss
from planc.verify.ranks import Metrics
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case
from tests.parity.ranks import Task, local_digests, open_run

WEIGHT = "model.layers.1.mlp.up_proj.weight"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong on a rank as `op` ends, in these steps, in its last micro-batch.

    `module` instead of `op`: what it puts out, or its gradient, goes wrong in a micro-batch of a pipeline.
    """

    op: str
    steps: tuple[int, ...]
    kind: str
    value: float = math.nan
    rank: int = 1
    module: str = ""
    micro_step: int = 0


@dataclass(slots=True)
class Told:
    """What a rank saw of its run; digests are of weights and optimizer state, by completed step."""

    code: ExitCode | None = None
    message: str = ""
    help: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    states: dict[int, dict[str, str]] = field(default_factory=dict)
    noted: list[str] = field(default_factory=list)
    steps: list[StepMetrics] = field(default_factory=list)
    losses: tuple[float, ...] = ()


class Listening(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def noted(self, text: str) -> None:
        self.texts.append(text)


class Faulty(TorchBackend):
    """Runs normally except for the fault, and keeps digests of the state at the end of every step."""

    def __init__(self, run: Run, *, fault: Fault | None) -> None:
        super().__init__(run)
        self.fault = fault
        self.states: dict[int, dict[str, str]] = {}
        self.step = 0

    def execute(self, op: Op, position: Position) -> None:
        if position.step and op.name == "batch.next":
            self.states[position.step - 1] = state_digests(self.state)
            self.step = position.step
        super().execute(op, position)
        fault = self.fault
        if fault is not None and fault.module and op.name == "batch.next" and self.step == 1:
            if self.run.launch.rank == fault.rank:
                self._spoil_module(fault)
            return
        if fault is None or op.name != fault.op or position.step not in fault.steps:
            return
        if position.is_last_micro_step and self.run.launch.rank == fault.rank:
            spoil(self.state, fault)

    def _spoil_module(self, fault: Fault) -> None:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            pipeline = self.state.get(Pipeline)
            micro_step = pipeline.now.micro_step if pipeline is not None else fault.micro_step
            if not module.training or self.step not in fault.steps or micro_step != fault.micro_step:
                return output
            if fault.kind == "gradient":
                output.register_hook(lambda gradient: gradient * fault.value)
                return output
            # One value of many.
            spoilt = torch.zeros_like(output)
            spoilt.view(-1)[5] = fault.value
            return output + spoilt

        self.state[nn.Module].get_submodule(fault.module).register_forward_hook(hook)


def state_digests(state: State) -> dict[str, str]:
    weights = dict(state[nn.Module].named_parameters())
    moments = {
        f"{key} of {name}": state[Optimizer].state[weight][key]
        for name, weight in weights.items()
        for key in ("exp_avg", "exp_avg_sq")
        if weight in state[Optimizer].state
    }
    return local_digests(weights, prefix="") | local_digests(moments, prefix="")


def spoil(state: State, fault: Fault) -> None:
    match fault.kind:
        case "loss":
            step_loss = state[StepLoss]
            share = step_loss.by_micro_step[-1].clone()
            state.put(Loss(state[Loss].value * fault.value))
            step_loss.total += share * fault.value - share
            step_loss.by_micro_step[-1] = share * fault.value
        case "weight":
            local_of(state[nn.Module].get_parameter(WEIGHT)).data.view(-1)[7] = fault.value
        case "step loss":
            state[StepLoss].total.fill_(fault.value)
        case "bit":
            bits = local_of(state[nn.Module].get_parameter(WEIGHT)).data.view(-1).view(torch.int32)
            bits[7] ^= 1
        case unknown:
            raise AssertionError(unknown)


def faulty_rank(rank: int, world_size: int, task: Task, fault: Fault | None) -> Told:
    listening = Listening()
    backend = Faulty(open_run(task, listening), fault=fault)
    told = Told(states=backend.states, noted=listening.texts, steps=listening.steps)
    try:
        run(task.graph, backend, stop_after=task.stop_after)
    except RunError as error:
        told.code, told.message, told.record = error.code, error.message, dict(error.record)
        told.help = error.help
    told.states[-1] = state_digests(backend.state)
    told.losses = backend.state[History].memory.losses
    # Rank 0 hosts the store, which the others must not lose before they have spoken.
    dist.destroy_process_group()
    return told


def run_faulty(
    workspace: Path, case: Case, fault: Fault | None, *settings: str, **task: Any
) -> Sequence[Told]:
    """What the ranks of a run tell."""
    graph = compile_case(replace(case, settings=settings), workspace=workspace, saves="run_folder" in task)
    folder = task.pop("run_folder", workspace / "run")
    return run_ranks(faulty_rank, graph.world_size, Task(graph, workspace, folder, **task), fault, init=False)
