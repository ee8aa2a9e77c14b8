"""The optimizer, its parameter groups, and their learning rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from planc.graph import ops
from planc.optimizers import OptimizerKind
from planc.optimizers.muon import Muon as MuonSettings
from planc.optimizers.own import OwnOptimizer as OwnSettings
from planc.optimizers.stored_adamw import StoredAdamW
from planc.runtime.interpreter import Position
from planc.runtime.schedule import learning_rate_factor, set_learning_rate
from planc.runtime.torch import private
from planc.runtime.torch.extensions.optimizer import own_optimizer
from planc.runtime.torch.extensions.schedule import OwnSchedule
from planc.runtime.torch.parallel.gradients import clip_factor, scale
from planc.runtime.torch.parallel.packing import packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import ClippedGradients, Schedule, Update, Verdict, Weights
from planc.runtime.torch.training.muon import Muon
from planc.runtime.torch.training.stored_adamw import StoredAdam


def build_optimizer(
    run: Run, op: ops.BuildOptimizer, weights: Weights, pipeline: Pipeline | None
) -> Optimizer:
    """Build one parameter group for each of the op's, split by the mesh of its parameters."""
    matrices = [group for group in op.groups if isinstance(group, ops.MatrixGroup)]
    others = [group for group in op.groups if not isinstance(group, ops.MatrixGroup)]
    groups = [*_options(others, weights, pipeline)]
    names = {parameter: name for name, parameter in weights.parameters.items()}
    packings = packed_parameters(weights.model)
    if isinstance(op.settings, OwnSettings):
        return own_optimizer(run, op, op.settings, groups, names)
    if isinstance(op.settings, StoredAdamW):
        return StoredAdam(groups, op.settings, lr=op.lr, names=names, packings=packings)
    if not isinstance(op.settings, MuonSettings):
        return _optimizer(op, op.settings, groups, device=run.weights_device)
    rest = _optimizer(op, op.settings.rest, groups, device=run.weights_device) if groups else None
    return Muon(
        [*_options(matrices, weights, pipeline)],
        op.settings,
        rest=rest,
        names=names,
        widths={name: rows for group in matrices for name, rows in group.widths},
        packings=packings,
    )


def _options(
    groups: Iterable[ops.ParameterGroup], weights: Weights, pipeline: Pipeline | None
) -> Iterator[dict[str, Any]]:
    for group in groups:
        for members in by_mesh(weights.parameters[name] for name in held(pipeline, group.parameters)):
            options = {"weight_decay": group.weight_decay, "lr": group.lr, "peak_lr": group.lr}
            yield {"params": members, **options}


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Plain parameters, and those of each mesh, apart: no kernel handles them together."""
    found: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault(mesh, []).append(parameter)
    return list(found.values())


def _optimizer(
    op: ops.BuildOptimizer, settings: OptimizerKind, groups: list[dict[str, Any]], *, device: torch.device
) -> Optimizer:
    torch_class: type[Optimizer] = getattr(torch.optim, settings.torch_class)
    chosen = op.implementation_on(device.type)
    options: dict[str, Any] = {"lr": op.lr, "foreach": chosen == "foreach", **settings.arguments}
    if chosen == "fused":
        # Some of torch's classes have no such option.
        options["fused"] = True
        torch_class = private.on_local_parts(torch_class)
    return torch_class(groups, **options)


def build_schedule(
    run: Run, op: ops.BuildSchedule, optimizer: Optimizer, own_schedule: OwnSchedule | None
) -> Schedule:
    factor = partial(learning_rate_factor, op) if own_schedule is None else own_schedule.factor
    set_learning_rate(optimizer.param_groups, factor(1))
    return Schedule(op, factor)


def step_optimizer(
    run: Run,
    op: ops.StepOptimizer,
    at: Position,
    optimizer: Optimizer,
    weights: Weights,
    gradients: ClippedGradients,
    verdict: Verdict,
) -> Update:
    run.notice.has_trained = True
    if not verdict.is_skipped:
        factor = clip_factor(verdict.gradient_norm, max_norm=gradients.max_norm)
        step_by(optimizer, gradients.tensors, factor=factor, device=run.weights_device)
    optimizer.zero_grad(set_to_none=True)
    return Update(at.step)


def step_by(optimizer: Optimizer, gradients: list[Tensor], *, factor: float, device: torch.device) -> None:
    """Step by gradients times a factor, which a fused kernel divides by as it reads them.

    Other implementations get gradients that were scaled in a pass of their own, as do all that need a divisor
    beyond the kernel's float32: of gradients in float64, or one that overflows.
    """
    if factor == 1.0:
        optimizer.step()
    elif optimizer.defaults.get("fused") and _fits_float32(1 / factor, gradients):
        divisor = torch.full((), 1 / factor, dtype=torch.float32, device=device)
        with private.dividing_gradients(optimizer, divisor):
            optimizer.step()
    else:
        scale(gradients, factor=factor)
        optimizer.step()


def _fits_float32(divisor: float, gradients: Iterable[Tensor]) -> bool:
    is_narrow = all(gradient.dtype != torch.float64 for gradient in gradients)
    return is_narrow and divisor < torch.finfo(torch.float32).max


def step_schedule(
    run: Run, op: ops.StepSchedule, optimizer: Optimizer, schedule: Schedule, update: Update
) -> None:
    set_learning_rate(optimizer.param_groups, schedule.factor(update.step + 1))
