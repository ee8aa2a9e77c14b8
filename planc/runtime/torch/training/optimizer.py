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
from planc.runtime.schedule import learning_rate_factor
from planc.runtime.torch.session import Session


def build_optimizer(session: Session, op: BuildOptimizer, position: Position) -> None:
    """Build one parameter group for each of the op's, split by the mesh of its parameters."""
    parameters = session.parameters
    groups = [
        {"params": members, "weight_decay": group.weight_decay, "lr": group.lr, "peak_lr": group.lr}
        for group in op.groups
        for members in by_mesh(parameters[name] for name in session.held(group.parameters))
    ]
    session._optimizer = _optimizer(op, groups, device=session.weights_device)


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


def build_schedule(session: Session, op: BuildSchedule, position: Position) -> None:
    session._schedule = op
    set_learning_rate(session, step=1)


def set_learning_rate(session: Session, *, step: int) -> None:
    """Set every group's learning rate for `step`."""
    factor = learning_rate_factor(session.schedule, step=step)
    for group in session.optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def step_optimizer(session: Session, op: StepOptimizer, position: Position) -> None:
    session.notice.has_trained = True
    if not session.guard.is_skipped:
        session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)


def step_schedule(session: Session, op: StepSchedule, position: Position) -> None:
    set_learning_rate(session, step=position.step + 1)
