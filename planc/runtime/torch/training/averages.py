"""Moving averages of trained weights: elementwise on each rank's shards, so the same on every mesh."""

from __future__ import annotations

import torch

from planc.graph.ops import ApplyAverages, BuildAverages, UpdateAverages
from planc.runtime.interpreter import Position
from planc.runtime.torch.parallel.fsdp import reshard
from planc.runtime.torch.parallel.local_parts import layout_of, local_of
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Averages, Update, Verdict, Weights


def build_averages(run: Run, op: BuildAverages, weights: Weights) -> Averages:
    return averages_of(weights)


def averages_of(weights: Weights) -> Averages:
    """Averages that begin at the weights: a narrower dtype would round most of their moves away."""
    found = {}
    for parameter in weights.parameters.values():
        if parameter.requires_grad:
            local = local_of(parameter.detach())
            wide = local.to(torch.promote_types(local.dtype, torch.float32), copy=True)
            found[parameter] = layout_of(parameter)(wide)
    return Averages(found)


@torch.no_grad()
def update_averages(
    run: Run,
    op: UpdateAverages,
    at: Position,
    averages: Averages,
    weights: Weights,
    verdict: Verdict,
    update: Update,
) -> None:
    if verdict.is_skipped:
        return
    for parameter, average in averages.by_parameter.items():
        own = local_of(average)
        own.lerp_(local_of(parameter).to(own.dtype), 1 - op.ema_decay)


def apply_averages(run: Run, op: ApplyAverages, at: Position, averages: Averages, weights: Weights) -> None:
    take_averages(averages, weights)
    run.observer.noted(f"the weights are now their averages, for export {', '.join(op.exports)}")


@torch.no_grad()
def take_averages(averages: Averages, weights: Weights) -> None:
    """Set the weights to their averages, rounded to their own dtype."""
    for parameter, average in averages.by_parameter.items():
        local_of(parameter).copy_(local_of(average))
    # Gathered copies would have the values from before.
    reshard(weights.model)
