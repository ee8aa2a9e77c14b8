"""Bugs planted on purpose: a table that cannot fail proves nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from planc.graph.op import Op
from planc.graph.ops import ComputeLoss, StepOptimizer, SyncGradients
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.state import LocalBatch

Fault = Callable[[State, Op, Position], None]


def norm_gradients_not_reduced(state: State, op: Op, position: Position) -> None:
    """Before gradients are synced, each rank's partial sum passes for the sum."""
    if not isinstance(op, SyncGradients):
        return
    for name, parameter in state[nn.Module].named_parameters():
        gradient = parameter.grad
        if "norm" in name and isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            parameter.grad = DTensor.from_local(
                gradient.to_local(), gradient.device_mesh, parameter.placements, run_check=False
            )


def labels_shifted_after_sharding(state: State, op: Op, position: Position) -> None:
    """Each rank's labels move by one within its own positions, as when shifting comes after sharding."""
    if isinstance(op, ComputeLoss):
        rolled = torch.roll(state[LocalBatch].labels, 1, dims=1)
        state.put(dataclasses.replace(state[LocalBatch], labels=rolled))


def replicas_drift(state: State, op: Op, position: Position) -> None:
    """One rank's copy of the last norm moves by one part in a million before the last step."""
    if isinstance(op, StepOptimizer) and dist.get_rank() == 1:
        parameter = state[nn.Module].get_parameter("model.norm.weight")
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        with torch.no_grad():
            local.mul_(1 + 1e-6)


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (norm_gradients_not_reduced, labels_shifted_after_sharding, replicas_drift)
}
