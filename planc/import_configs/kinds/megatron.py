"""Megatron-LM: the arguments of a script that starts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.import_configs import facts, readers
from planc.import_configs.kind import Kind, Note, NoteKind, Row, wrong
from planc.import_configs.kinds import reasons as why
from planc.import_configs.leaves import Leaf, Value, written
from planc.import_configs.readers import Unread
from planc.inventory.schema import Inventory


def _optimizer(value: Value) -> str:
    """Megatron's adam decays the weights, as AdamW does."""
    kind = readers.optimizer(value)
    return "adamw" if kind == "adam" else kind


def _decay_style(value: Value) -> str:
    return "wsd" if value == "WSD" else readers.schedule(value)


def _sharded(value: Value) -> int:
    """Optimizer states over the data-parallel ranks, parameters and gradients whole: ZeRO-1."""
    return int(readers.flag(value))


def _documents(value: Value) -> str:
    raise Unread("files of tokens that Megatron-LM prepared: pass --data with the text")


def _compute(value: Value) -> str:
    return readers.bfloat16_if(value)


def _recompute(value: Value) -> str:
    word = readers.text(value)
    if word in ("full", "selective"):
        return word
    raise Unread(f"a plan recomputes full or selective, not {written(value)}")


_SIZES = (
    *(
        "num-layers",
        "hidden-size",
        "ffn-hidden-size",
        "num-attention-heads",
        "num-query-groups",
        "kv-channels",
    ),
    *("max-position-embeddings", "position-embedding-type", "rotary-*", "use-rotary-position-embeddings"),
    *("normalization", "norm-epsilon", "swiglu", "squared-relu", "group-query-attention", "vocab-size"),
    *("disable-bias-linear", "add-qkv-bias", "untie-embeddings-and-output-weights", "qk-layernorm"),
    *(
        "make-vocab-size-divisible-by",
        "num-experts",
        "moe-ffn-hidden-size",
        "moe-layer-freq",
        "use-mcore-models",
    ),
    *("moe-router-topk", "moe-shared-expert-*", "moe-router-score-function", "multi-latent-attention"),
    *("no-position-embedding", "no-rope-fusion", "model-name", "spec", "apply-layernorm-1p"),
)
_HOW = (
    *("attention-backend", "use-flash-attn", "transformer-impl", "no-*-fusion", "no-masked-softmax-fusion"),
    *("cross-entropy-loss-fusion", "cross-entropy-fusion-impl", "attention-softmax-in-fp32", "overlap-*"),
    *("tp-comm-*", "manual-gc*", "use-cpu-initialization", "empty-unused-memory-level", "num-workers"),
    *(
        "distributed-backend",
        "distributed-timeout-minutes",
        "ddp-*",
        "no-create-attention-mask-in-dataloader",
    ),
    *(
        "no-mmap-bin-files",
        "use-tp-pp-dp-mapping",
        "no-async-tensor-model-parallel-allreduce",
        "no-gradient-*",
    ),
    *(
        "accumulate-allreduce-grads-in-fp32",
        "moe-grouped-gemm",
        "moe-token-dispatcher-type",
        "moe-permute-fusion",
    ),
    *(
        "initial-loss-scale",
        "loss-scale*",
        "use-torch-optimizer-for-cpu-offload",
        "exit-*",
        "deterministic-mode",
    ),
    *("calculate-per-token-loss", "enable-*", "dataloader-type", "no-bias-*", "gradient-accumulation-fusion"),
)
_LOGS = (
    *(
        "log-*",
        "tensorboard-*",
        "wandb-exp-name",
        "wandb-save-dir",
        "timing-*",
        "profile*",
        "use-pytorch-profiler",
    ),
    *("one-logger*", "no-one-logger"),
)
_SAVED = (
    *("save", "load", "no-load-optim", "no-load-rng", "no-save-optim", "no-save-rng", "ckpt-*", "async-save"),
    *("use-dist-ckpt", "auto-detect-ckpt-format", "dist-ckpt-*", "use-checkpoint-args", "override-opt*"),
    *("use-checkpoint-opt*", "load-main-params-from-ckpt"),
)
_ROWS = (
    Row("micro-batch-size", facts.MICRO_BATCH),
    Row("global-batch-size", facts.GLOBAL_BATCH),
    Row("seq-length", facts.SEQUENCE_LENGTH),
    Row("train-iters", facts.STEPS),
    Row("lr", facts.LR),
    Row("min-lr", facts.MIN_LR),
    Row("lr-decay-style", facts.SCHEDULE, read=_decay_style),
    Row("lr-warmup-iters", facts.WARMUP),
    Row("lr-warmup-fraction", facts.WARMUP_RATIO),
    Row("lr-wsd-decay-iters", facts.DECAY_STEPS),
    Row("lr-warmup-init", change=why.WARMS_FROM_ZERO, harmless=(0, 0.0)),
    Row("weight-decay", facts.WEIGHT_DECAY),
    Row("clip-grad", facts.CLIP),
    Row("optimizer", facts.OPTIMIZER, read=_optimizer),
    Row("adam-beta1", facts.BETA1),
    Row("adam-beta2", facts.BETA2),
    Row("adam-eps", facts.EPS),
    Row("sgd-momentum", facts.MOMENTUM),
    Row("bf16", facts.PARAM_DTYPE, read=_compute),
    Row("fp16", change=why.HALF, harmless=(False,)),
    Row("fp8-*", change=why.FLOAT8),
    Row("fp4-*", change=why.FLOAT8),
    Row("grad-reduce-in-bf16", facts.REDUCE_DTYPE, read=_compute),
    Row("seed", facts.SEED),
    Row("tensor-model-parallel-size", facts.TP),
    Row("pipeline-model-parallel-size", facts.PP),
    Row("context-parallel-size", facts.CP),
    Row("cp-comm-type", reason=why.CP_BACKEND),
    Row("sequence-parallel", facts.SEQUENCE_PARALLEL),
    Row("expert-model-parallel-size", facts.EP),
    Row("expert-tensor-parallel-size", facts.ETP),
    Row("num-layers-per-virtual-pipeline-stage", reason=why.STAGES),
    Row("decoder-*-pipeline-num-layers", reason=why.STAGES),
    Row("use-distributed-optimizer", facts.ZERO_STAGE, read=_sharded),
    Row("use-megatron-fsdp", facts.SHARDED),
    Row("use-torch-fsdp2", facts.SHARDED),
    Row("data-parallel-sharding-strategy", reason="`fsdp` shards parameters, gradients and optimizer state"),
    Row("optimizer-cpu-offload", facts.OFFLOAD),
    Row(
        "recompute-activations", facts.RECOMPUTE, read=lambda value: "selective" if value is True else "none"
    ),
    Row("recompute-granularity", facts.RECOMPUTE, read=_recompute),
    *(Row(f"recompute-{name}", reason=why.SELECTIVE) for name in ("method", "num-layers", "modules")),
    Row("hidden-dropout", change=why.OWN_MODEL, harmless=(0, 0.0)),
    Row("attention-dropout", change=why.OWN_MODEL, harmless=(0, 0.0)),
    Row("init-method-std", reason="weights start as the model's own code initializes them"),
    Row("data-path", facts.DATA, read=_documents),
    *(Row(f"{part}-data-path", reason=why.EVALUATION) for part in ("valid", "test")),
    *(Row(key, reason=why.LOADER) for key in ("split", "data-cache-path", "data-args-path", "mock-data")),
    Row("tokenizer-*", reason=why.TOKENIZER),
    *(
        Row(key, reason=why.TOKENIZER)
        for key in ("vocab-file", "merge-file", "tiktoken-*", "vocab-extra-ids")
    ),
    *(
        Row(key, change=why.OWN_DATA)
        for key in ("reset-position-ids", "reset-attention-mask", "eod-mask-loss")
    ),
    Row("moe-aux-loss-coeff", change=why.BALANCE, harmless=(0, 0.0)),
    Row("moe-router-load-balancing-type", change=why.BALANCE, harmless=("none",)),
    Row("moe-z-loss-coeff", change=why.LOSS, harmless=(0, 0.0)),
    Row("pretrained-checkpoint", facts.PRETRAINED, read=lambda value: True),
    Row("finetune", facts.PRETRAINED),
    Row("save-interval", facts.SAVE_EVERY),
    Row("log-interval", facts.LOG_EVERY),
    Row("wandb-project", facts.WANDB),
    *(Row(f"eval-{name}", reason=why.EVALUATION) for name in ("interval", "iters", "micro-batch-size")),
    *(Row(key, reason=why.OWN_MODEL) for key in _SIZES),
    *(Row(key, reason=why.INTERNAL) for key in _HOW),
    *(Row(key, reason=why.LOGS) for key in _LOGS),
    *(Row(key, reason=why.LOADING) for key in _SAVED),
    Row("launch.**", reason=why.LAUNCH),
)

_DROPS = ("hidden-dropout", "attention-dropout")


def _own_rows(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """A schedule ends with the run, so an end of its own must be the same."""
    steps, end = leaves.get("train-iters"), leaves.get("lr-decay-iters")
    if end is None or (steps is not None and steps.value == end.value):
        return (Row("lr-decay-iters", reason="a schedule ends with the last step of `train.steps`"),)
    return (Row("lr-decay-iters", change="a schedule ends with the last step of `train.steps`"),)


def _faults(leaves: Mapping[str, Leaf]) -> Iterator[Note]:
    for key in _DROPS:
        if key not in leaves:
            text = "0.1 without this argument: a plan drops out what the model's config.json says"
            yield Note(NoteKind.CHANGED, key, text)
    style, decay = leaves.get("lr-decay-style"), leaves.get("lr-wsd-decay-style")
    if style is not None and style.value == "WSD" and (decay is None or decay.value != "linear"):
        text = "exponential by default: a plan's wsd decays linearly"
        yield Note(NoteKind.CHANGED, "lr-wsd-decay-style", text, *((decay.line, decay.file) if decay else ()))


def _checks(leaves: Mapping[str, Leaf], inventory: Inventory | None) -> Iterator[Note]:
    if inventory is None:
        return
    heads = {attention.num_heads for attention in inventory.attentions}
    for key, sizes in (
        ("num-layers", {len(inventory.layers())}),
        ("hidden-size", {inventory.hidden_size}),
        ("num-attention-heads", heads),
    ):
        leaf = leaves.get(key)
        if leaf is not None and isinstance(leaf.value, int) and leaf.value not in sizes:
            yield wrong(
                leaf, f"{leaf.value}, but the model of the plan has {', '.join(map(str, sorted(sizes)))}"
            )


MEGATRON = Kind(
    name="megatron",
    title="Megatron-LM",
    formats=("sh",),
    marks=(
        *("tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size", "num-layers"),
        *("train-iters", "global-batch-size", "lr-decay-style", "use-distributed-optimizer", "hidden-size"),
    ),
    rows=_ROWS,
    own_rows=_own_rows,
    implied=((facts.SHARDED, False),),
    defaults=(
        *((facts.WEIGHT_DECAY, 0.01), (facts.CLIP, 1.0), (facts.BETA1, 0.9), (facts.BETA2, 0.999)),
        *((facts.EPS, 1e-8), (facts.SCHEDULE, "linear"), (facts.SEED, 1234), (facts.OPTIMIZER, "adamw")),
        (facts.PRETRAINED, False),
    ),
    spares_norms=True,
    faults=_faults,
    checks=_checks,
)
