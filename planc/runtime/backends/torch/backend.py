"""The torch backend: one handler an op, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.backends.torch import (
    batches,
    build,
    checkpointing,
    evaluation,
    export,
    gradients,
    mesh,
    optimizer,
    recompute,
    reporting,
    sharding,
    steps,
    tensor_parallel,
    weights,
)
from planc.runtime.backends.torch.session import Session
from planc.runtime.interpreter import Position

Handler = Callable[[Session, Any, Position], None]

HANDLERS: Mapping[type[Op], Handler] = {
    ops.InitMesh: mesh.init_mesh,
    ops.BuildModel: build.build_model,
    ops.AttachAttention: build.attach_attention,
    ops.ShardTensorParallel: tensor_parallel.shard_tensor_parallel,
    ops.CheckpointActivations: recompute.checkpoint_activations,
    ops.FullyShard: sharding.shard_fully,
    ops.MaterialiseWeights: weights.materialise_weights,
    ops.InitWeights: weights.init_weights,
    ops.LoadWeights: weights.load_weights,
    ops.BuildOptimizer: optimizer.build_optimizer,
    ops.BuildSchedule: optimizer.build_schedule,
    ops.OpenData: batches.open_data,
    ops.OpenEvaluation: evaluation.open_evaluation,
    ops.ResumeCheckpoint: checkpointing.resume_checkpoint,
    ops.NextBatch: batches.next_batch,
    ops.ShardContext: batches.shard_context,
    ops.Forward: steps.forward,
    ops.ComputeLoss: steps.compute_loss,
    ops.Backward: steps.backward,
    ops.SyncGradients: gradients.sync_gradients,
    ops.ClipGradients: gradients.clip_gradients,
    ops.StepOptimizer: optimizer.step_optimizer,
    ops.StepSchedule: optimizer.step_schedule,
    ops.Evaluate: evaluation.evaluate,
    ops.ReduceMetrics: reporting.reduce_metrics,
    ops.Log: reporting.log,
    ops.SaveCheckpoint: checkpointing.save_checkpoint,
    ops.ExportHf: export.export_hf,
}


class TorchBackend:
    """Executes ops on this rank. The process group must stand; see `mesh.connect`."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def execute(self, op: Op, position: Position) -> None:
        HANDLERS[type(op)](self.session, op, position)

    def completed_steps(self) -> int:
        return self.session.completed_steps

    def started(self, *, first_step: int) -> None:
        self.session.observer.started(first_step=first_step, num_steps=self.session.graph.num_steps)

    def describe_rank(self) -> str:
        rank = self.session.launch.rank
        places: list[str] = []
        for mesh_dim, size in reversed(self.session.graph.mesh):
            rank, place = divmod(rank, size)
            if size > 1:
                places.insert(0, f"{mesh_dim} {place}")
        where = f" ({', '.join(places)})" if places else ""
        return f"rank {self.session.launch.rank}{where}"
