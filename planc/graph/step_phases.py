"""The phases of a step, by op: the parts of a step's time."""

from __future__ import annotations

from collections.abc import Mapping

from planc.graph import ops
from planc.graph.op import Op

DATA, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, OTHER = (
    *("data", "forward", "backward", "optimizer", "checkpoint", "other"),
)
PHASES = (DATA, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, OTHER)
_PHASES: Mapping[type[Op], str] = {
    ops.NextBatch: DATA,
    ops.ShardContext: DATA,
    ops.Forward: FORWARD,
    ops.ComputeLoss: FORWARD,
    ops.Backward: BACKWARD,
    ops.ComputeWeightGradients: BACKWARD,
    ops.SyncGradients: OPTIMIZER,
    ops.AllReduceGradients: BACKWARD,
    ops.SumTies: OPTIMIZER,
    ops.ClipGradients: OPTIMIZER,
    ops.StepOptimizer: OPTIMIZER,
    ops.StepSchedule: OPTIMIZER,
    ops.SettleSave: CHECKPOINT,
    ops.SaveCheckpoint: CHECKPOINT,
    ops.ExportHf: CHECKPOINT,
}


def phase_of(op: Op) -> str:
    """The phase that an op's time counts toward: of reductions by FSDP and over replicas, backward."""
    return _PHASES.get(type(op), OTHER)
