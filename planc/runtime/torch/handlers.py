"""One handler per op, in one table: what a run does, in the order of `OPS`."""

from __future__ import annotations

from collections.abc import Mapping

from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.torch.checkpoint import background_saving, base
from planc.runtime.torch.checkpoint import ops as checkpointing
from planc.runtime.torch.dispatch import Handler
from planc.runtime.torch.dropout import attach as dropout
from planc.runtime.torch.extensions import loss as own_loss
from planc.runtime.torch.extensions import schedule as own_schedule
from planc.runtime.torch.parallel import (
    experts,
    gradients,
    heads,
    mesh,
    pipeline,
    replica_sums,
    replicas,
    tensor_parallel,
)
from planc.runtime.torch.parallel import fsdp as sharding
from planc.runtime.torch.reporting import log as reporting_log
from planc.runtime.torch.reporting import metrics as reporting
from planc.runtime.torch.reporting import own_readers
from planc.runtime.torch.reporting import profile as reporting_profile
from planc.runtime.torch.training import (
    averages,
    balance,
    batches,
    compilation,
    contrastive,
    distillation,
    evaluation,
    expert_load,
    guarding,
    judging,
    loss_terms,
    optimizer,
    pipeline_messages,
    preferences,
    recompute,
    step_read,
)
from planc.runtime.torch.training import forward_backward as steps
from planc.runtime.torch.weights import adapters, build, export, export_adapter, freezing, nf4, push, weights

HANDLERS: Mapping[type[Op], Handler] = {
    ops.InitMesh: mesh.init_mesh,
    ops.LoadSchedule: own_schedule.load_schedule,
    ops.LoadLoss: own_loss.load_loss,
    ops.BuildLoss: loss_terms.build_loss,
    ops.BuildPreferenceLoss: preferences.build_preference_loss,
    ops.BuildDistillationLoss: distillation.build_distillation_loss,
    ops.OpenLog: reporting_log.open_log,
    ops.BuildModel: build.build_model,
    ops.BuildOwnModel: build.build_model,
    ops.BuildClassifier: build.build_model,
    ops.BuildEmbedder: build.build_model,
    ops.AttachAdapters: adapters.attach_adapters,
    ops.FreezeParameters: freezing.freeze_parameters,
    ops.QuantizeBase: nf4.quantize_base,
    ops.AttachAttention: build.attach_attention,
    ops.AttachDropout: dropout.attach_dropout,
    ops.SplitPipeline: pipeline.split_pipeline,
    ops.ShardTensorParallel: tensor_parallel.shard_tensor_parallel,
    ops.ShareHeads: heads.share_heads,
    ops.ShardExperts: experts.shard_experts,
    ops.CapExperts: experts.cap_experts,
    ops.CheckpointActivations: recompute.checkpoint_activations,
    ops.CompileModules: compilation.compile_modules,
    ops.FullyShard: sharding.shard_fully,
    ops.PrefetchUnits: sharding.prefetch_units,
    ops.MaterialiseWeights: weights.materialize_weights,
    ops.InitWeights: weights.init_weights,
    ops.LoadWeights: weights.load_weights,
    ops.LoadBase: weights.load_weights,
    ops.InitAdapters: adapters.init_adapters,
    ops.LoadAdapters: adapters.load_adapters,
    ops.LoadReaders: own_readers.load_readers,
    ops.BuildOptimizer: optimizer.build_optimizer,
    ops.BuildSchedule: optimizer.build_schedule,
    ops.BuildAverages: averages.build_averages,
    ops.OpenSource: batches.open_source,
    ops.OpenData: batches.open_data,
    ops.OpenMaskedData: batches.open_data,
    ops.OpenLabeledData: batches.open_data,
    ops.OpenMatchedData: batches.open_data,
    ops.OpenMappedData: batches.open_data,
    ops.OpenTeacher: distillation.open_teacher,
    ops.OpenEvaluation: evaluation.open_evaluation,
    ops.CountExperts: expert_load.count_experts,
    ops.BalanceExperts: balance.balance_experts,
    ops.ComputeReference: preferences.compute_reference,
    ops.NameBase: base.name_base,
    ops.ResumeCheckpoint: checkpointing.resume_checkpoint,
    ops.BranchRun: checkpointing.branch_run,
    ops.StartProfile: reporting_profile.start_profile,
    ops.NextBatch: batches.next_batch,
    ops.ShardContext: batches.shard_context,
    ops.ReceiveHidden: pipeline_messages.receive_hidden,
    ops.Forward: steps.forward,
    ops.SendHidden: pipeline_messages.send_hidden,
    ops.SumRoutes: balance.sum_routes,
    ops.ComputeLoss: steps.compute_loss,
    ops.ComputePairLoss: preferences.compute_pair_loss,
    ops.ComputeContrastiveLoss: contrastive.compute_contrastive_loss,
    ops.Backward: steps.backward,
    ops.ComputeWeightGradients: steps.compute_weight_gradients,
    ops.SyncGradients: gradients.sync_gradients,
    ops.SumTies: gradients.sum_ties,
    ops.AllReduceGradients: replica_sums.all_reduce_gradients,
    ops.ClipGradients: gradients.clip_gradients,
    ops.GuardStep: guarding.guard_step,
    ops.StepOptimizer: optimizer.step_optimizer,
    ops.UpdateAverages: averages.update_averages,
    ops.MoveBiases: balance.move_biases,
    ops.StepSchedule: optimizer.step_schedule,
    ops.CompareReplicas: replicas.compare_replicas,
    ops.Evaluate: evaluation.evaluate,
    ops.JudgeEvaluations: judging.judge_evaluations,
    ops.ReadGradients: own_readers.read_gradients,
    ops.ReadStep: own_readers.read_step,
    ops.ReadEvaluations: own_readers.read_evaluations,
    ops.AgreeToStop: own_readers.agree_to_stop,
    ops.ReduceMetrics: step_read.reduce_metrics,
    ops.Log: reporting.log,
    ops.StopProfile: reporting_profile.stop_profile,
    ops.SettleSave: background_saving.settle_save,
    ops.SaveCheckpoint: checkpointing.save_checkpoint,
    ops.ApplyAverages: averages.apply_averages,
    ops.ExportHf: export.export_hf,
    ops.ExportAdapter: export_adapter.export_adapter,
    ops.PushExport: push.push_export,
}
