"""Facts that configs and plans have in common, each with its place in a plan and its reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planc.import_configs import part_readers, readers
from planc.import_configs.leaves import Value, written
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
    trains: bool = True
    """Whether another value trains something else: one that no plan has stops the import.

    Where an option gives the value, the import asks for that instead.
    """
    is_settled: bool = False
    """Whether a value that no plan has stops the import though an option gives the fact."""
    null: bool = False
    """Whether null is a value."""
    words: tuple[str, str] = ("false", "true")
    """A flag's text in a plan, off and on."""

    def show(self, value: Any) -> str:
        """A value as a plan has it."""
        return self.words[value] if isinstance(value, bool) else written(value)


MODEL = Fact("model", "model.hf", readers.hub_or_path, "--model")
REVISION = Fact("revision", "model.hf", readers.text)
PRETRAINED = Fact(
    "pretrained", "model.weights", readers.flag, "--weights", is_settled=True, words=("random", "pretrained")
)
MODEL_SEED = Fact("model seed", "model.seed", readers.whole)
SEED = Fact("seed", "model.seed", readers.whole)
"""One seed for weights and for the order of samples."""
MODEL_DTYPE = Fact("parameter dtype", "model.dtype", readers.dtype)
ATTENTION = Fact("attention", "model.attention", readers.attention, trains=False)
WORLD_SIZE = Fact("world size", "mesh", readers.count, "--gpus")
DP_REPLICATE = Fact("replicas", "mesh.dp_replicate", readers.count)
DP_SHARD = Fact("shards", "mesh.dp_shard", readers.rest_or_count, null=True)
DP_SIZE = Fact("data-parallel ranks", "mesh.dp_shard", readers.rest_or_count, null=True)
ULYSSES = Fact("sequence ranks", "mesh.cp", readers.many)
CP = Fact("context parallel", "mesh.cp", readers.count)
TP = Fact("tensor parallel", "mesh.tp", readers.count)
EP = Fact("expert ranks", "expert_parallel.size", readers.count, trains=False)
ETP = Fact("expert tensor parallel", "expert_parallel", readers.count, trains=False)
"""The ranks of tp that share each expert; where it is 1, they have different experts."""
PP = Fact("pipeline ranks", "mesh.pp", readers.count)
PIPELINE_SCHEDULE = Fact("pipeline schedule", "pipeline.schedule", readers.pipeline_schedule, trains=False)
PIPELINE_MICRO_BATCH = Fact("micro batch of the pipeline", "data.micro_batch", readers.count)
"""A number of several micro batches: with it, `MICRO_BATCH` is what a rank of data parallelism reads in a
step."""
NODES = Fact("nodes", "mesh.devices_per_node", readers.count, trains=False)
SEQUENCE_PARALLEL = Fact("sequence parallel", "tensor_parallel.auto", readers.flag)
ROTATE = Fact("rotation", "context_parallel.rotate", readers.among(allgather="allgather", alltoall="ring"))
BALANCER = Fact("load balancer", "context_parallel.load_balancer", readers.balancer, trains=False)
BACKEND = Fact("backend", "mesh.backend", readers.among(nccl="nccl", gloo="gloo"), trains=False)
TIMEOUT = Fact("timeout", "mesh.timeout", readers.count, trains=False)
TIMEOUT_MINUTES = Fact("timeout in minutes", "mesh.timeout", readers.count, trains=False)
SHARDED = Fact("sharding", "fsdp", readers.flag)
HYBRID = Fact("hybrid sharding", "fsdp.replicate_on", readers.flag)
STRATEGY = Fact("strategy", "fsdp", readers.shard_words)
ZERO_STAGE = Fact("ZeRO stage", "fsdp", readers.stage)
UNITS = Fact("units", "fsdp.unit", readers.wrapping, trains=False)
RESHARD_BACKWARD = Fact("reshard after backward", "fsdp.reshard_after_backward", readers.flag, trains=False)
REDUCES_EACH = Fact("gradients as shards", "fsdp.reduce_every", readers.flag, trains=False)
RESHARD = Fact("reshard", "fsdp.unit.reshard_after_forward", readers.tuned_resharding, trains=False)
OFFLOAD = Fact("offload", "fsdp.cpu_offload", readers.flag, trains=False)
PARAM_DTYPE = Fact("compute dtype", "fsdp.param_dtype", readers.dtype)
REDUCE_DTYPE = Fact("reduction dtype", "fsdp.reduce_dtype", readers.dtype)
RECOMPUTE = Fact("recomputation", "activation_checkpoint", readers.recompute, trains=False)
COMPILE = Fact("compile", "compile", readers.flag, trains=False)
FULLGRAPH = Fact("whole graphs", "compile.fullgraph", readers.flag, trains=False)
DYNAMIC = Fact("dynamic shapes", "compile.dynamic", readers.flag, trains=False)
DATA = Fact("data", "data.source", readers.dataset, "--data")
CHAT = Fact(
    "conversations", "data.source", readers.flag, "--data-as", is_settled=True, words=("text", "chat")
)
PAIRS = Fact("method of preferences", "data.source", readers.among(dpo="dpo"))
"""The method that trains on pairs of answers."""
TRAIN_ON = Fact("messages trained on", "data.source", readers.train_on)
ROLES = Fact("messages trained on", "data.source", readers.roles, null=True)
"""A list of roles in place of TRAIN_ON; null is for the last message."""
TRAINS_ENDS = Fact("ends of turns", "data.source", readers.ends_of_turns, null=True)
TEMPLATE = Fact("chat template", "data.source", readers.template_file)
SPLIT = Fact("split", "data.source", readers.text)
EVAL_SHARE = Fact("held-out share", "data.eval", readers.held_share, trains=False)
EVAL_EVERY = Fact("evaluation interval", "data.eval", readers.count, trains=False)
MESSAGES = Fact("key of the messages", "data.source", readers.text)
TEXT_FIELD = Fact("key of the text", "data.source", readers.text)
SEQUENCE_LENGTH = Fact("sequence length", "data.sequence_length", readers.count, "--sequence-length")
MICRO_BATCH = Fact("micro batch", "data.micro_batch", readers.count, "--micro-batch")
MICRO_BATCH_TOKENS = Fact("tokens of a micro batch", "data.micro_batch", readers.count)
MICRO_BATCHES = Fact("micro batches of the pipeline", "train.tokens_per_step", readers.count)
PACKING = Fact("packing", "data.packing", readers.flag, words=("none", "whole"))
SHUFFLE_SEED = Fact("data seed", "data.shuffle_seed", readers.whole)
ACCUMULATION = Fact("accumulation", "train.tokens_per_step", readers.count)
GLOBAL_BATCH = Fact("global batch", "train.tokens_per_step", readers.count)
GLOBAL_TOKENS = Fact("tokens of a step", "train.tokens_per_step", readers.count)
STEPS = Fact("steps", "train.steps", readers.steps, "--steps")
EPOCHS = Fact("epochs", "train.epochs", readers.epochs)
LOG_EVERY = Fact("logging", "train.log_every", readers.count, trains=False)
LOSS_CHUNKS = Fact("chunks of the loss", "train.loss_chunks", readers.flag, trains=False)
DPO_BETA = Fact("beta of preferences", "train.loss", readers.positive)
DPO_SMOOTHING = Fact("label smoothing of preferences", "train.loss", readers.share)
LABEL_SMOOTHING = Fact("label smoothing", "train.loss", readers.share)
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
CLIP = Fact("clipping", "optimizer.clip_grad_norm", readers.clipping, null=True)
"""None turns it off."""
SCHEDULE = Fact("schedule", "optimizer.schedule", readers.schedule)
WARMUP = Fact("warm-up", "optimizer.schedule.warmup", readers.warmup_steps)
WARMUP_RATIO = Fact("warm-up ratio", "optimizer.schedule.warmup", readers.share)
DECAY_STEPS = Fact("decay", "optimizer.schedule.decay", readers.whole)
DECAY_RATIO = Fact("decay ratio", "optimizer.schedule.decay", readers.share)
MIN_FACTOR = Fact("lowest rate, as a share", "optimizer.schedule.min_factor", readers.share)
MIN_LR = Fact("lowest rate", "optimizer.schedule.min_factor", readers.amount)
ADAPTER = Fact("adapter", "adapter", part_readers.adapter, null=True)
"""None trains the model's own parameters."""
LORA_RANK = Fact("rank of adapters", "adapter.kind.rank", readers.count)
LORA_ALPHA = Fact("alpha of adapters", "adapter.kind.alpha", readers.amount)
LORA_DROPOUT = Fact("dropout of adapters", "adapter.kind.dropout", readers.share)
LORA_START = Fact("first adapters", "adapter.start", readers.text)
RSLORA = Fact("scale by the root of the rank", "adapter.kind.rslora", readers.flag)
DORA = Fact("trained lengths of adapted rows", "adapter.kind.dora", readers.flag)
FOUR_BITS = Fact("storage of the frozen base", "adapter.base", readers.flag, words=("model", "nf4"))
LORA_TARGETS = Fact("adapted layers", "adapter", part_readers.targets)
"""Names of layers, or `ALL_LINEAR`."""
TRAINED = Fact("parts trained", "freeze", part_readers.module_names)
"""Parts of the model that are trained with adapters, or though the rest is frozen."""
FROZEN = Fact("parts frozen", "freeze", part_readers.module_names)
LAST_LAYERS = Fact("last layers trained", "freeze", part_readers.whole_number)
"""The number of last layers that alone are trained; below zero, of first ones."""
SAVES = Fact("saving", "checkpoint", readers.flag, trains=False)
SAVE_EVERY = Fact("save interval", "checkpoint.save_every", readers.count, trains=False)
KEEP_LAST = Fact("kept checkpoints", "checkpoint.keep_last", readers.count, trains=False)
ASYNC = Fact("save mode", "checkpoint.mode", readers.save_mode, trains=False)
TRACKERS = Fact("trackers", "logging.tracker", readers.trackers, trains=False)
TENSORBOARD = Fact("TensorBoard", "logging.tracker", readers.flag, trains=False)
WANDB = Fact("Weights & Biases", "logging.tracker", readers.text, trains=False)

STRATEGIES: dict[str, tuple[tuple[Fact, bool], ...]] = {
    "full_shard": ((SHARDED, True), (RESHARD, True)),
    "shard_grad_op": ((SHARDED, True), (RESHARD, False)),
    "no_shard": ((SHARDED, False),),
    "hybrid_shard": ((SHARDED, True), (HYBRID, True)),
    "hybrid_shard_zero2": ((SHARDED, True), (HYBRID, True), (RESHARD, False)),
    "offload": ((OFFLOAD, True),),
}
"""The meaning of each of FSDP's words."""

_WHOLE = ((SHARDED, True), (RESHARD, False), (RESHARD_BACKWARD, False))
STAGES: tuple[tuple[tuple[Fact, bool], ...], ...] = (
    ((SHARDED, False),),
    _WHOLE,
    (*_WHOLE, (REDUCES_EACH, True)),
    ((SHARDED, True), (REDUCES_EACH, True)),
)
"""The meaning of each stage of ZeRO. From the second on, micro-batches reduce their gradients."""
