"""Gradients made whole, measured and clipped, on whatever meshes their parameters lie."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from planc.graph.ops import ClipGradients, SyncGradients
from planc.runtime.backends.torch.session import Session
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position


def sync_gradients(session: Session, op: SyncGradients, position: Position) -> None:
    """Redistributes gradients that are still partial sums to their parameter's placements.

    FSDP does so for the parameters it shards; this is for those under tensor parallelism alone.
    """
    for parameter in session.model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
            parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]


def clip_gradients(session: Session, op: ClipGradients, position: Position) -> None:
    """Scales all gradients so that their global norm is at most `max_norm`.

    RunError with the numerics code if the norm is not finite: the step would spoil every weight.
    """
    gradients = [p.grad for p in session.model.parameters() if p.grad is not None]
    session.grad_norm = global_norm(gradients, device=session.device)
    if not math.isfinite(session.grad_norm):
        ids = [int(i) for batch in session.batch for i in batch.sample_ids]
        raise RunError(
            f"the gradient norm is {session.grad_norm} at step {position.step}; no weight was changed",
            code=ExitCode.NUMERICS,
            help=f"lower the learning rate or look at the samples; rank 0 had sequences {ids[:16]}",
        )
    if op.max_norm is not None and session.grad_norm > op.max_norm:
        scale(gradients, factor=op.max_norm / (session.grad_norm + 1e-6))


def scale(gradients: Iterable[Tensor], *, factor: float) -> None:
    """Multiplies every gradient in place."""
    for gradient in gradients:
        local_of(gradient).mul_(factor)


def global_norm(gradients: Iterable[Tensor], *, device: torch.device) -> float:
    """The 2-norm over every distinct gradient element, the same on every rank."""
    total = squared_norm(gradients, device=device).item()
    return math.sqrt(total) if total >= 0 else math.nan


def squared_norm(gradients: Iterable[Tensor], *, device: torch.device) -> Tensor:
    """The square of the global norm, a float64 scalar, the same on every rank.

    Gradients are grouped by mesh and placements; each group's sum of squares is added up over the mesh dims
    that shard it. torch's own clipping wants all gradients on one mesh.
    """
    groups: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        groups.setdefault(key, []).append(gradient)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for members in groups.values():
        squares = [_sum_of_squares(local_of(member)) for member in members]
        group_total = torch.stack(squares).sum()
        first = members[0]
        if isinstance(first, DTensor):
            for index, placement in enumerate(first.placements):
                # Strided shards are no subclass of Shard, so what is not replicated is asked for.
                if placement != Replicate():
                    dist.all_reduce(group_total, group=first.device_mesh.get_group(index))
        total += group_total
    return total


def _sum_of_squares(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square()


def local_of(tensor: Tensor) -> Tensor:
    """The local shard of a DTensor; a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
