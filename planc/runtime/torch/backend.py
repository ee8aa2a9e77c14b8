"""The torch backend: one handler per op, in one table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.profiler import record_function

from planc.graph import ops
from planc.graph.op import Op, Stage
from planc.graph.step_phases import phase_of
from planc.pipelining.orders import Action
from planc.runtime.errors import ExitCode
from planc.runtime.interpreter import Position
from planc.runtime.ranks.lost_ranks import coordinates
from planc.runtime.torch.agreement.agree import agreed, one_after_another
from planc.runtime.torch.checkpoint import background_saving
from planc.runtime.torch.checkpoint import ops as checkpointing
from planc.runtime.torch.dropout import attach as dropout
from planc.runtime.torch.parallel import fsdp as sharding
from planc.runtime.torch.parallel import (
    gradients,
    heads,
    mesh,
    pipeline,
    replica_sums,
    replicas,
    tensor_parallel,
)
from planc.runtime.torch.reporting import expert_load
from planc.runtime.torch.reporting import log as reporting_log
from planc.runtime.torch.reporting import metrics as reporting
from planc.runtime.torch.reporting import profile as reporting_profile
from planc.runtime.torch.reporting.line import write_line
from planc.runtime.torch.reporting.own_time import OwnTime
from planc.runtime.torch.reporting.phase_times import PhaseClock
from planc.runtime.torch.reporting.stage_shares import shares_of_ranks
from planc.runtime.torch.session import Session
from planc.runtime.torch.training import (
    batches,
    compilation,
    evaluation,
    guarding,
    optimizer,
    pipeline_messages,
    preemption,
    recompute,
)
from planc.runtime.torch.training import forward_backward as steps
from planc.runtime.torch.weights import agreement as weights_agreement
from planc.runtime.torch.weights import build, export, weights

Handler = Callable[[Session, Any, Position], None]

HANDLERS: Mapping[type[Op], Handler] = {
    ops.InitMesh: mesh.init_mesh,
    ops.OpenLog: reporting_log.open_log,
    ops.BuildModel: agreed(build.build_model),
    ops.AttachAttention: build.attach_attention,
    ops.AttachDropout: dropout.attach_dropout,
    ops.SplitPipeline: pipeline.split_pipeline,
    ops.ShardTensorParallel: tensor_parallel.shard_tensor_parallel,
    ops.ShareHeads: heads.share_heads,
    ops.CheckpointActivations: recompute.checkpoint_activations,
    ops.CompileModules: compilation.compile_modules,
    ops.FullyShard: sharding.shard_fully,
    ops.PrefetchUnits: sharding.prefetch_units,
    ops.MaterialiseWeights: weights.materialize_weights,
    ops.InitWeights: weights.init_weights,
    ops.LoadWeights: one_after_another(
        agreed(weights.load_weights), agreed(weights_agreement.compare_copies)
    ),
    ops.BuildOptimizer: optimizer.build_optimizer,
    ops.BuildSchedule: optimizer.build_schedule,
    ops.OpenSource: agreed(batches.open_source),
    ops.OpenData: agreed(batches.open_data),
    ops.OpenEvaluation: agreed(evaluation.open_evaluation),
    ops.CountExperts: expert_load.count_experts,
    ops.ResumeCheckpoint: checkpointing.resume_checkpoint,
    ops.StartProfile: reporting_profile.start_profile,
    ops.NextBatch: batches.next_batch,
    ops.ShardContext: batches.shard_context,
    ops.ReceiveHidden: pipeline_messages.receive_hidden,
    ops.Forward: steps.forward,
    ops.SendHidden: pipeline_messages.send_hidden,
    ops.ComputeLoss: steps.compute_loss,
    ops.Backward: steps.backward,
    ops.ComputeWeightGradients: steps.compute_weight_gradients,
    ops.SyncGradients: gradients.sync_gradients,
    ops.SumTies: gradients.sum_ties,
    ops.AllReduceGradients: replica_sums.all_reduce_gradients,
    ops.ClipGradients: gradients.clip_gradients,
    ops.GuardStep: guarding.guard_step,
    ops.StepOptimizer: optimizer.step_optimizer,
    ops.StepSchedule: optimizer.step_schedule,
    ops.CompareReplicas: replicas.compare_replicas,
    ops.Evaluate: evaluation.evaluate,
    ops.ReduceMetrics: reporting.reduce_metrics,
    ops.Log: reporting.log,
    ops.StopProfile: reporting_profile.stop_profile,
    ops.SettleSave: background_saving.settle_save,
    ops.SaveCheckpoint: checkpointing.save_checkpoint,
    ops.ExportHf: export.export_hf,
}


class TorchBackend:
    """Executes ops on this rank. The process group must exist; see `mesh.connect`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.clock = session.clock = PhaseClock(has_queue=session.has_queue)

    def execute(self, op: Op, position: Position) -> None:
        if position.step == 0:
            self.session.observer.preparing(f"{op.name}: {op.summary}")
        self._write_line(op)
        self.clock.enter(phase_of(op))
        if self.session.own_time is not None:
            self.session.own_time.enter(op)
        if self.session.watch is not None:
            self.session.watch.enter(op, step=position.step, micro_step=position.micro_step)
        if self.session.trace is None:
            self._handle(op, position)
            return
        # A trace shows the plan's own ops, with their lines, around PyTorch's.
        with record_function(f"{op.name} {op.span or ''}".rstrip()):
            self._handle(op, position)

    def _write_line(self, op: Op | None) -> None:
        """Write the line of the last step if it is complete, and before a save in any case."""
        line = self.session.line
        is_save = op is not None and op.stage is Stage.SAVE
        if line is not None and (is_save or line.most.is_there()):
            write_line(self.session)

    def _handle(self, op: Op, position: Position) -> None:
        first_step = self.session.first_step
        if first_step is None:
            HANDLERS[type(op)](self.session, op, position)
            return
        with first_step.counting(op, position):
            HANDLERS[type(op)](self.session, op, position)
        first_step.compare(self.session, op, position)

    def order_of(self, op: ops.Accumulate) -> Sequence[Action]:
        return pipeline.order_of(self.session)

    def finish_order(self) -> None:
        pipeline_messages.finish_sends(self.session)

    def completed_steps(self) -> int:
        return self.session.completed_steps

    def started(self, *, first_step: int) -> None:
        if self.session.watch is not None:
            # With a watch, this process is one rank, and all its waits are that rank's.
            self.session.own_time = OwnTime(
                has_device_queue=self.session.has_queue, shares=shares_of_ranks(self.session)
            )
        self.session.observer.started(first_step=first_step, num_steps=self.session.graph.num_steps)

    def ends_after(self, *, step: int) -> bool:
        is_ending = preemption.ends_after(self.session, step=step)
        if is_ending:
            write_line(self.session)
        return is_ending

    def abandons_step(self) -> bool:
        return preemption.stops_here(self.session, in_step=True)

    def abandon_step(self, *, step: int) -> None:
        write_line(self.session)
        preemption.abandon_step(self.session, step=step)

    def pending_evaluations(self) -> Sequence[ops.Evaluate]:
        found = (op for op in self.session.graph.step if isinstance(op, ops.Evaluate))
        return [op for op in found if op.label in self.session.pending_evaluations]

    def describe_rank(self) -> str:
        rank = self.session.launch.rank
        places = coordinates(self.session.graph, rank=rank)
        where = f" ({', '.join(places)})" if places else ""
        return f"rank {rank}{where}"

    def failed(self, message: str, *, code: ExitCode) -> str | None:
        if code is ExitCode.NUMERICS:
            # All ranks are alive, and the step being saved is before the one that went wrong.
            background_saving.finish_save(self.session)
        # A broken device must not hide why the run ends.
        with contextlib.suppress(RuntimeError):
            self._write_line(None)
        if self.session.rank_log is not None:
            self.session.rank_log.write("failed", message=message, exit_code=int(code))
        watch = self.session.watch
        if watch is None:
            return None
        if code is ExitCode.COMMUNICATION:
            return watch.cut_off()
        watch.failed(message)
        return None
