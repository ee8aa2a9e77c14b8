"""What a config can say that a plan says too: one fact each, with its place in a plan and its reader.

A reader takes a value as the file has it, and returns the value that the plan gets. It raises `Unread`
with the reason for one that a plan can't have.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

from planc.hub.names import is_repository
from planc.import_configs.leaf import Value, written
from planc.record import record


class Unread(ValueError):
    """Why a value has no counterpart."""


@record
class Fact:
    """A fact of a plan."""

    name: str
    place: str
    """The setting or block that it goes to."""
    read: Callable[[Value], Any]
    option: str = ""
    """The option of `planc import` that gives it."""


def number(value: Value) -> float:
    """A finite number; YAML reads `1e-8` as text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unread(_automatic(value) or f"`{written(value)}` is not a number")
    return float(value)


def count(value: Value) -> int:
    found = number(value)
    if found < 1 or found != int(found):
        raise Unread(f"`{written(value)}` is not a positive whole number")
    return int(found)


def whole(value: Value) -> int:
    found = number(value)
    if found < 0 or found != int(found):
        raise Unread(f"`{written(value)}` is not a whole number")
    return int(found)


def rest_or_count(value: Value) -> int | None:
    """None for the rest of the devices, as torchtitan's -1 and Automodel's `none`."""
    if value in (-1, None) or (isinstance(value, str) and value.lower() in ("none", "auto", "null")):
        return None
    return count(value)


def share(value: Value) -> float:
    found = number(value)
    if not 0 <= found <= 1:
        raise Unread(f"`{written(value)}` is not between 0 and 1")
    return found


def positive(value: Value) -> float:
    found = number(value)
    if found <= 0:
        raise Unread(f"{written(value)} turns it off, as in a plan without it")
    return found


def amount(value: Value) -> float:
    found = number(value)
    if found < 0:
        raise Unread(f"`{written(value)}` is negative")
    return found


_ON = ("true", "yes", "on")
_OFF = ("false", "no", "off", "none", "disabled", "")


def flag(value: Value) -> bool:
    """True or false, also as the words that configs have for them."""
    if isinstance(value, str) and value.lower() in (*_ON, *_OFF):
        return value.lower() in _ON
    if value is None:
        return False
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise Unread(_automatic(value) or f"`{written(value)}` is neither true nor false")


def pair(value: Value) -> tuple[float, float]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise Unread(_automatic(value) or f"`{written(value)}` is not two numbers")
    return number(value[0]), number(value[1])


def text(value: Value) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unread(f"`{written(value)}` is not a name")
    return value.strip()


_DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("float32", "fp32", "float", "torch.float32", "no"), "float32"),
}


def dtype(value: Value) -> str:
    name = text(value).lower()
    if name in ("float16", "fp16", "half", "torch.float16"):
        raise Unread("planc does not scale the loss, which float16 needs: train in bfloat16")
    if name not in _DTYPES:
        raise Unread(_automatic(value) or f"planc does not train in `{written(value)}`")
    return _DTYPES[name]


def bfloat16_if(value: Value) -> str:
    """bfloat16 of a flag that turns it on."""
    if not flag(value):
        raise Unread("off")
    return "bfloat16"


def _automatic(value: Value) -> str | None:
    if isinstance(value, str) and value.lower() == "auto":
        return "`auto` is filled in by the launching program: a plan names the value"
    return None


def among(**names: str) -> Callable[[Value], str]:
    """The reader of a closed choice: of a word, the plan's word."""

    def read(value: Value) -> str:
        word = text(value).lower()
        if word not in names:
            raise Unread(_automatic(value) or f"planc does not have `{written(value)}`")
        return names[word]

    return read


_ADAMW = "adamw adam adamw_torch adamw_torch_fused adamw_hf adamw_torch_xla torch.optim.adamw adamw_fused"


def optimizer(value: Value) -> str:
    word = text(value).lower()
    if word in _ADAMW.split():
        return "adamw"
    if word in ("sgd", "torch.optim.sgd"):
        return "sgd"
    raise Unread(f"planc has adamw and sgd, not {written(value)}")


_SCHEDULES = {
    **dict.fromkeys(("cosine", "cosine_with_min_lr", "warmupcosinelr"), "cosine"),
    **dict.fromkeys(("linear", "warmupdecaylr"), "linear"),
    **dict.fromkeys(("constant", "constant_with_warmup", "warmuplr"), "constant"),
    **dict.fromkeys(("warmup_stable_decay", "wsd"), "wsd"),
}


def schedule(value: Value) -> str:
    word = text(value).lower()
    if word not in _SCHEDULES:
        raise Unread(f"planc has cosine, linear, constant and wsd, not {written(value)}")
    return _SCHEDULES[word]


def attention(value: Value) -> str:
    word = text(value).lower()
    if word in ("sdpa", "eager"):
        return word
    if "flash" in word or word in ("flex", "flex_attention"):
        raise Unread("planc has sdpa, which runs flash kernels on CUDA, and eager")
    raise Unread(f"planc has sdpa and eager, not {written(value)}")


def balancer(value: Value) -> str:
    word = text(value).lower()
    if word in ("headtail", "none"):
        return word
    raise Unread(f"planc has headtail and none, not {written(value)}")


def recompute(value: Value) -> str:
    """full, selective or none."""
    if isinstance(value, str) and value.lower() in ("full", "selective", "none"):
        return value.lower()
    return "full" if flag(value) else "none"


def save_mode(value: Value) -> str:
    """async or sync."""
    word = text(value).lower()
    if word in ("async", "async_with_pinned_mem"):
        return "async"
    if word in ("disabled", "sync"):
        return "sync"
    raise Unread(f"planc saves sync or async, not {written(value)}")


def hub_or_path(value: Value) -> str:
    return text(value)


def dataset(value: Value) -> str:
    """A local path; a dataset of the Hub needs a commit."""
    name = text(value)
    if is_repository(name):
        nearest = f'`source = hf_hub("{name}", revision = "<commit>")`'
        raise Unread(f"a dataset of the Hub needs a commit in a plan: {nearest}")
    if not name.endswith((".json", ".jsonl", ".parquet", ".arrow", ".txt")):
        raise Unread("not local files: pass --data")
    return name


MODEL = Fact("model", "model.hf", hub_or_path, "--model")
REVISION = Fact("revision", "model.hf", text)
PRETRAINED = Fact("pretrained", "model.weights", flag)
MODEL_SEED = Fact("model seed", "model.seed", whole)
MODEL_DTYPE = Fact("parameter dtype", "model.dtype", dtype)
ATTENTION = Fact("attention", "model.attention", attention)
WORLD_SIZE = Fact("world size", "mesh", count, "--gpus")
DP_REPLICATE = Fact("replicas", "mesh.dp_replicate", count)
DP_SHARD = Fact("shards", "mesh.dp_shard", rest_or_count)
DP_SIZE = Fact("data-parallel ranks", "mesh.dp_shard", rest_or_count)
CP = Fact("context parallel", "mesh.cp", count)
TP = Fact("tensor parallel", "mesh.tp", count)
NODES = Fact("nodes", "mesh.devices_per_node", count)
SEQUENCE_PARALLEL = Fact("sequence parallel", "tensor_parallel.auto", flag)
ROTATE = Fact("rotation", "context_parallel.rotate", among(allgather="allgather", alltoall="ring"))
BALANCER = Fact("load balancer", "context_parallel.load_balancer", balancer)
BACKEND = Fact("backend", "mesh.backend", among(nccl="nccl", gloo="gloo"))
TIMEOUT = Fact("timeout", "mesh.timeout", count)
TIMEOUT_MINUTES = Fact("timeout in minutes", "mesh.timeout", count)
SHARDED = Fact("sharding", "fsdp", flag)
HYBRID = Fact("hybrid sharding", "fsdp.replicate_on", flag)
RESHARD = Fact("reshard", "fsdp.unit.reshard_after_forward", flag)
OFFLOAD = Fact("offload", "fsdp.cpu_offload", flag)
PARAM_DTYPE = Fact("compute dtype", "fsdp.param_dtype", dtype)
REDUCE_DTYPE = Fact("reduction dtype", "fsdp.reduce_dtype", dtype)
RECOMPUTE = Fact("recomputation", "activation_checkpoint", recompute)
COMPILE = Fact("compile", "compile", flag)
FULLGRAPH = Fact("whole graphs", "compile.fullgraph", flag)
DYNAMIC = Fact("dynamic shapes", "compile.dynamic", flag)
DATA = Fact("data", "data.source", dataset, "--data")
SEQUENCE_LENGTH = Fact("sequence length", "data.sequence_length", count, "--sequence-length")
MICRO_BATCH = Fact("micro batch", "data.micro_batch", count, "--micro-batch")
PACKING = Fact("packing", "data.packing", flag)
SHUFFLE_SEED = Fact("data seed", "data.shuffle_seed", whole)
ACCUMULATION = Fact("accumulation", "train.tokens_per_step", count)
GLOBAL_BATCH = Fact("global batch", "train.tokens_per_step", count)
STEPS = Fact("steps", "train.steps", count, "--steps")
LOG_EVERY = Fact("logging", "train.log_every", count)
LOSS_CHUNKS = Fact("chunks of the loss", "train.loss_chunks", flag)
OPTIMIZER = Fact("optimizer", "optimizer.kind", optimizer)
LR = Fact("learning rate", "optimizer.kind.lr", positive, "--lr")
BETAS = Fact("betas", "optimizer.kind.betas", pair)
BETA1 = Fact("first beta", "optimizer.kind.betas", share)
BETA2 = Fact("second beta", "optimizer.kind.betas", share)
EPS = Fact("epsilon", "optimizer.kind.eps", amount)
WEIGHT_DECAY = Fact("weight decay", "optimizer.kind.weight_decay", amount)
MOMENTUM = Fact("momentum", "optimizer.kind.momentum", share)
IMPLEMENTATION = Fact(
    "implementation",
    "optimizer.kind.implementation",
    among(fused="fused", foreach="foreach", **{"for-loop": "for_loop"}),
)
CLIP = Fact("clipping", "optimizer.clip_grad_norm", positive)
SCHEDULE = Fact("schedule", "optimizer.schedule", schedule)
WARMUP = Fact("warm-up", "optimizer.schedule.warmup", whole)
WARMUP_RATIO = Fact("warm-up ratio", "optimizer.schedule.warmup", share)
DECAY_STEPS = Fact("decay", "optimizer.schedule.decay", whole)
DECAY_RATIO = Fact("decay ratio", "optimizer.schedule.decay", share)
MIN_FACTOR = Fact("lowest rate, as a share", "optimizer.schedule.min_factor", share)
MIN_LR = Fact("lowest rate", "optimizer.schedule.min_factor", amount)
SAVES = Fact("saving", "checkpoint", flag)
SAVE_EVERY = Fact("save interval", "checkpoint.save_every", count)
KEEP_LAST = Fact("kept checkpoints", "checkpoint.keep_last", count)
ASYNC = Fact("save mode", "checkpoint.mode", save_mode)
TENSORBOARD = Fact("TensorBoard", "logging.tracker", flag)
WANDB = Fact("Weights & Biases", "logging.tracker", text)
