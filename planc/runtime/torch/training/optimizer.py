"""The optimizer, its parameter groups, and their learning rates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from planc.graph.ops import BuildOptimizer, BuildSchedule, StepOptimizer, StepSchedule
from planc.runtime.interpreter import Position
from planc.runtime.schedule import set_learning_rate
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import ClippedGradients, Schedule, Update, Verdict, Weights


def build_optimizer(run: Run, op: BuildOptimizer, weights: Weights, pipeline: Pipeline | None) -> Optimizer:
    """Build one parameter group for each of the op's, split by the mesh of its parameters."""
    parameters = weights.parameters
    groups = [
        {"params": members, "weight_decay": group.weight_decay, "lr": group.lr, "peak_lr": group.lr}
        for group in op.groups
        for members in by_mesh(parameters[name] for name in held(pipeline, group.parameters))
    ]
    return _optimizer(op, groups, device=run.weights_device)


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Plain parameters, and those of each mesh, apart: no kernel handles them together."""
    found: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault(mesh, []).append(parameter)
    return list(found.values())


def _optimizer(op: BuildOptimizer, groups: list[dict[str, Any]], *, device: torch.device) -> Optimizer:
    torch_class: type[Optimizer] = getattr(torch.optim, op.settings.torch_class)
    options: dict[str, Any] = {"lr": op.lr, **op.settings.arguments, **_flags(op, device=device)}
    return torch_class(groups, **options)


def _flags(op: BuildOptimizer, *, device: torch.device) -> dict[str, bool]:
    """torch's flags for the op's implementation. Some of its classes have no `fused`."""
    chosen = op.implementation_on(device.type)
    return {"foreach": chosen == "foreach", **({"fused": True} if chosen == "fused" else {})}


def build_schedule(run: Run, op: BuildSchedule, optimizer: Optimizer) -> Schedule:
    set_learning_rate(optimizer.param_groups, op, step=1)
    return Schedule(op)


def step_optimizer(
    run: Run,
    op: StepOptimizer,
    at: Position,
    optimizer: Optimizer,
    weights: Weights,
    gradients: ClippedGradients,
    verdict: Verdict,
) -> Update:
    run.notice.has_trained = True
    if not verdict.is_skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Update(at.step)


def step_schedule(
    run: Run, op: StepSchedule, optimizer: Optimizer, schedule: Schedule, update: Update
) -> None:
    set_learning_rate(optimizer.param_groups, schedule.op, step=update.step + 1)
