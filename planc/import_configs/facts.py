"""What configs and plans have in common: one fact each, with its place in a plan and its reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planc.import_configs import readers
from planc.import_configs.leaf import Value
from planc.record import record


@record
class Fact:
    """A fact of a plan."""

    name: str
    place: str
    """The setting or block that it goes to."""
    read: Callable[[Value], Any]
    option: str = ""
    """The option of `planc import` that gives it."""


MODEL = Fact("model", "model.hf", readers.hub_or_path, "--model")
REVISION = Fact("revision", "model.hf", readers.text)
PRETRAINED = Fact("pretrained", "model.weights", readers.flag)
MODEL_SEED = Fact("model seed", "model.seed", readers.whole)
SEED = Fact("seed", "model.seed", readers.whole)
"""One seed for weights and for the order of samples."""
MODEL_DTYPE = Fact("parameter dtype", "model.dtype", readers.dtype)
ATTENTION = Fact("attention", "model.attention", readers.attention)
WORLD_SIZE = Fact("world size", "mesh", readers.count, "--gpus")
DP_REPLICATE = Fact("replicas", "mesh.dp_replicate", readers.count)
DP_SHARD = Fact("shards", "mesh.dp_shard", readers.rest_or_count)
DP_SIZE = Fact("data-parallel ranks", "mesh.dp_shard", readers.rest_or_count)
ULYSSES = Fact("sequence ranks", "mesh.cp", readers.many)
CP = Fact("context parallel", "mesh.cp", readers.count)
TP = Fact("tensor parallel", "mesh.tp", readers.count)
PP = Fact("pipeline ranks", "mesh.pp", readers.count)
PIPELINE_SCHEDULE = Fact("pipeline schedule", "pipeline.schedule", readers.pipeline_schedule)
PIPELINE_MICRO_BATCH = Fact("micro batch of the pipeline", "data.micro_batch", readers.count)
"""With it, `MICRO_BATCH` is what a rank of data parallelism reads in a step: several micro batches."""
NODES = Fact("nodes", "mesh.devices_per_node", readers.count)
SEQUENCE_PARALLEL = Fact("sequence parallel", "tensor_parallel.auto", readers.flag)
ROTATE = Fact("rotation", "context_parallel.rotate", readers.among(allgather="allgather", alltoall="ring"))
BALANCER = Fact("load balancer", "context_parallel.load_balancer", readers.balancer)
BACKEND = Fact("backend", "mesh.backend", readers.among(nccl="nccl", gloo="gloo"))
TIMEOUT = Fact("timeout", "mesh.timeout", readers.count)
TIMEOUT_MINUTES = Fact("timeout in minutes", "mesh.timeout", readers.count)
SHARDED = Fact("sharding", "fsdp", readers.flag)
HYBRID = Fact("hybrid sharding", "fsdp.replicate_on", readers.flag)
STRATEGY = Fact("strategy", "fsdp", readers.shard_words)
ZERO_STAGE = Fact("ZeRO stage", "fsdp", readers.stage)
UNITS = Fact("units", "fsdp.unit", readers.wrapping)
RESHARD = Fact("reshard", "fsdp.unit.reshard_after_forward", readers.tuned_resharding)
OFFLOAD = Fact("offload", "fsdp.cpu_offload", readers.flag)
PARAM_DTYPE = Fact("compute dtype", "fsdp.param_dtype", readers.dtype)
REDUCE_DTYPE = Fact("reduction dtype", "fsdp.reduce_dtype", readers.dtype)
RECOMPUTE = Fact("recomputation", "activation_checkpoint", readers.recompute)
COMPILE = Fact("compile", "compile", readers.flag)
FULLGRAPH = Fact("whole graphs", "compile.fullgraph", readers.flag)
DYNAMIC = Fact("dynamic shapes", "compile.dynamic", readers.flag)
DATA = Fact("data", "data.source", readers.dataset, "--data")
SEQUENCE_LENGTH = Fact("sequence length", "data.sequence_length", readers.count, "--sequence-length")
MICRO_BATCH = Fact("micro batch", "data.micro_batch", readers.count, "--micro-batch")
PACKING = Fact("packing", "data.packing", readers.flag)
SHUFFLE_SEED = Fact("data seed", "data.shuffle_seed", readers.whole)
ACCUMULATION = Fact("accumulation", "train.tokens_per_step", readers.count)
GLOBAL_BATCH = Fact("global batch", "train.tokens_per_step", readers.count)
STEPS = Fact("steps", "train.steps", readers.steps, "--steps")
LOG_EVERY = Fact("logging", "train.log_every", readers.count)
LOSS_CHUNKS = Fact("chunks of the loss", "train.loss_chunks", readers.flag)
OPTIMIZER = Fact("optimizer", "optimizer.kind", readers.optimizer)
LR = Fact("learning rate", "optimizer.kind.lr", readers.positive, "--lr")
BETAS = Fact("betas", "optimizer.kind.betas", readers.pair)
BETA1 = Fact("first beta", "optimizer.kind.betas", readers.share)
BETA2 = Fact("second beta", "optimizer.kind.betas", readers.share)
EPS = Fact("epsilon", "optimizer.kind.eps", readers.amount)
WEIGHT_DECAY = Fact("weight decay", "optimizer.kind.weight_decay", readers.amount)
MOMENTUM = Fact("momentum", "optimizer.kind.momentum", readers.share)
IMPLEMENTATION = Fact(
    "implementation",
    "optimizer.kind.implementation",
    readers.among(fused="fused", foreach="foreach", **{"for-loop": "for_loop"}),
)
CLIP = Fact("clipping", "optimizer.clip_grad_norm", readers.positive)
SCHEDULE = Fact("schedule", "optimizer.schedule", readers.schedule)
WARMUP = Fact("warm-up", "optimizer.schedule.warmup", readers.warmup_steps)
WARMUP_RATIO = Fact("warm-up ratio", "optimizer.schedule.warmup", readers.share)
DECAY_STEPS = Fact("decay", "optimizer.schedule.decay", readers.whole)
DECAY_RATIO = Fact("decay ratio", "optimizer.schedule.decay", readers.share)
MIN_FACTOR = Fact("lowest rate, as a share", "optimizer.schedule.min_factor", readers.share)
MIN_LR = Fact("lowest rate", "optimizer.schedule.min_factor", readers.amount)
SAVES = Fact("saving", "checkpoint", readers.flag)
SAVE_EVERY = Fact("save interval", "checkpoint.save_every", readers.count)
KEEP_LAST = Fact("kept checkpoints", "checkpoint.keep_last", readers.count)
ASYNC = Fact("save mode", "checkpoint.mode", readers.save_mode)
TRACKERS = Fact("trackers", "logging.tracker", readers.trackers)
TENSORBOARD = Fact("TensorBoard", "logging.tracker", readers.flag)
WANDB = Fact("Weights & Biases", "logging.tracker", readers.text)

STRATEGIES: dict[str, tuple[tuple[Fact, bool], ...]] = {
    "full_shard": ((SHARDED, True), (RESHARD, True)),
    "shard_grad_op": ((SHARDED, True), (RESHARD, False)),
    "no_shard": ((SHARDED, False),),
    "hybrid_shard": ((SHARDED, True), (HYBRID, True)),
    "hybrid_shard_zero2": ((SHARDED, True), (HYBRID, True), (RESHARD, False)),
    "offload": ((OFFLOAD, True),),
}
"""What each of FSDP's words means."""

STAGES: tuple[tuple[tuple[Fact, bool], ...], ...] = (
    ((SHARDED, False),),
    ((SHARDED, True), (RESHARD, False)),
    ((SHARDED, True), (RESHARD, False)),
    ((SHARDED, True),),
)
"""What each stage of ZeRO means. To stages 1 and 2, FSDP2 that keeps gathered parameters is nearest."""
