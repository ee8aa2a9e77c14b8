"""AdamW, its groups, and its learning rate."""

from __future__ import annotations

from torch.optim import AdamW

from planc.graph.ops import BuildOptimizer, BuildSchedule, StepOptimizer, StepSchedule
from planc.runtime.backends.torch.session import Session
from planc.runtime.interpreter import Position
from planc.runtime.schedule import learning_rate_factor


def build_optimizer(session: Session, op: BuildOptimizer, position: Position) -> None:
    """One parameter group for each weight decay of the op.

    On CUDA one kernel updates everything in place; torch's default there takes the square roots of all second
    moments first, as large as the parameters.
    """
    parameters = dict(session.model.named_parameters())
    groups = [
        {"params": [parameters[name] for name in names], "weight_decay": decay, "lr": op.lr, "peak_lr": op.lr}
        for decay, names in op.groups
    ]
    is_fused = session.device.type == "cuda"
    session._optimizer = AdamW(groups, lr=op.lr, betas=op.betas, eps=op.eps, fused=is_fused)


def build_schedule(session: Session, op: BuildSchedule, position: Position) -> None:
    session._schedule = op
    set_learning_rate(session, step=1)


def set_learning_rate(session: Session, *, step: int) -> None:
    """Gives every group its learning rate of `step`."""
    factor = learning_rate_factor(session.schedule, step=step)
    for group in session.optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def step_optimizer(session: Session, op: StepOptimizer, position: Position) -> None:
    session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)


def step_schedule(session: Session, op: StepSchedule, position: Position) -> None:
    set_learning_rate(session, step=position.step + 1)
