"""Every op, one file each, registered in one tuple, in the order of a run."""

from planc.graph.op import Op
from planc.graph.ops.accumulate import Accumulate
from planc.graph.ops.all_reduce_gradients import AllReduceGradients
from planc.graph.ops.attach_attention import AttachAttention
from planc.graph.ops.attach_dropout import AttachDropout
from planc.graph.ops.backward import Backward
from planc.graph.ops.build_model import BuildModel
from planc.graph.ops.build_optimizer import BuildOptimizer, ParameterGroup
from planc.graph.ops.build_schedule import BuildSchedule
from planc.graph.ops.checkpoint_activations import CheckpointActivations
from planc.graph.ops.clip_gradients import ClipGradients
from planc.graph.ops.compare_replicas import CompareReplicas
from planc.graph.ops.compile_modules import CompileModules
from planc.graph.ops.compute_loss import ComputeLoss
from planc.graph.ops.compute_weight_gradients import ComputeWeightGradients
from planc.graph.ops.count_experts import CountExperts
from planc.graph.ops.evaluate import Evaluate
from planc.graph.ops.export_hf import ExportHf
from planc.graph.ops.forward import Forward
from planc.graph.ops.fully_shard import FullyShard
from planc.graph.ops.guard_step import GuardStep
from planc.graph.ops.init_mesh import InitMesh
from planc.graph.ops.init_weights import InitWeights
from planc.graph.ops.load_weights import LoadWeights
from planc.graph.ops.log import Log
from planc.graph.ops.materialise_weights import MaterialiseWeights
from planc.graph.ops.next_batch import NextBatch
from planc.graph.ops.open_data import OpenData
from planc.graph.ops.open_evaluation import OpenEvaluation
from planc.graph.ops.open_log import OpenLog
from planc.graph.ops.open_source import OpenSource
from planc.graph.ops.prefetch_units import PrefetchUnits
from planc.graph.ops.receive_hidden import ReceiveHidden
from planc.graph.ops.reduce_metrics import ReduceMetrics
from planc.graph.ops.resume_checkpoint import ResumeCheckpoint
from planc.graph.ops.save_checkpoint import SaveCheckpoint
from planc.graph.ops.send_hidden import SendHidden
from planc.graph.ops.settle_save import SettleSave
from planc.graph.ops.shard_context import ShardContext
from planc.graph.ops.shard_tensor_parallel import ShardTensorParallel
from planc.graph.ops.share_heads import ShareHeads
from planc.graph.ops.split_pipeline import SplitPipeline
from planc.graph.ops.start_profile import StartProfile
from planc.graph.ops.step_optimizer import StepOptimizer
from planc.graph.ops.step_schedule import StepSchedule
from planc.graph.ops.stop_profile import StopProfile
from planc.graph.ops.sum_ties import SumTies
from planc.graph.ops.sync_gradients import SyncGradients

OPS: tuple[type[Op], ...] = (
    InitMesh,
    OpenLog,
    BuildModel,
    AttachAttention,
    AttachDropout,
    SplitPipeline,
    ShardTensorParallel,
    ShareHeads,
    CheckpointActivations,
    CompileModules,
    FullyShard,
    PrefetchUnits,
    MaterialiseWeights,
    InitWeights,
    LoadWeights,
    BuildOptimizer,
    BuildSchedule,
    OpenSource,
    OpenData,
    OpenEvaluation,
    CountExperts,
    ResumeCheckpoint,
    StartProfile,
    NextBatch,
    Accumulate,
    ShardContext,
    ReceiveHidden,
    Forward,
    SendHidden,
    ComputeLoss,
    Backward,
    ComputeWeightGradients,
    SyncGradients,
    AllReduceGradients,
    SumTies,
    ClipGradients,
    ReduceMetrics,
    GuardStep,
    StepOptimizer,
    StepSchedule,
    CompareReplicas,
    Evaluate,
    Log,
    StopProfile,
    SettleSave,
    SaveCheckpoint,
    ExportHf,
)

__all__ = [
    "OPS",
    "Accumulate",
    "AllReduceGradients",
    "AttachAttention",
    "AttachDropout",
    "Backward",
    "BuildModel",
    "BuildOptimizer",
    "BuildSchedule",
    "CheckpointActivations",
    "ClipGradients",
    "CompareReplicas",
    "CompileModules",
    "ComputeLoss",
    "ComputeWeightGradients",
    "CountExperts",
    "Evaluate",
    "ExportHf",
    "Forward",
    "FullyShard",
    "GuardStep",
    "InitMesh",
    "InitWeights",
    "LoadWeights",
    "Log",
    "MaterialiseWeights",
    "NextBatch",
    "OpenData",
    "OpenEvaluation",
    "OpenLog",
    "OpenSource",
    "ParameterGroup",
    "PrefetchUnits",
    "ReceiveHidden",
    "ReduceMetrics",
    "ResumeCheckpoint",
    "SaveCheckpoint",
    "SendHidden",
    "SettleSave",
    "ShardContext",
    "ShardTensorParallel",
    "ShareHeads",
    "SplitPipeline",
    "StartProfile",
    "StepOptimizer",
    "StepSchedule",
    "StopProfile",
    "SumTies",
    "SyncGradients",
]
