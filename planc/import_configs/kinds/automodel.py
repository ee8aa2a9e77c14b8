"""NeMo Automodel's YAML recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.import_configs import facts, part_readers, readers
from planc.import_configs.kind import Kind, Note, NoteKind, Row, note, wrong
from planc.import_configs.kinds import reasons as why
from planc.import_configs.leaves import Leaf, Value, written
from planc.import_configs.readers import Idle, Unread


def _optimizer(value: Value) -> str:
    name = readers.text(value).rpartition(".")[2]
    if name.lower() in ("adamw", "fusedadam", "flashadamw"):
        return "adamw"
    return readers.optimizer(name)


def _pretrained(value: Value) -> bool:
    name = readers.text(value).rpartition(".")[2]
    if name in ("from_pretrained", "from_config"):
        return name == "from_pretrained"
    raise Unread(why.OWN_MODEL)


def _sharded(value: Value) -> bool:
    word = readers.text(value).lower().rpartition(".")[2]
    if word in ("fsdp2", "fsdp2manager", "ddp", "ddpmanager"):
        return word.startswith("fsdp2")
    raise Unread(f"planc shards by FSDP2, not by {written(value)}")


def _dtype(value: Value) -> str:
    if isinstance(value, str) and value.lower() == "auto":
        raise Idle("`auto` takes config.json's dtype; a plan's `dtype` is float32 unless it says otherwise")
    return readers.dtype(value)


def _is_chat(value: Value) -> bool:
    """Whether a data set has conversations, by the class that reads it."""
    name = readers.text(value).rpartition(".")[2]
    if name in ("ChatDataset", "NanogptDataset", "MegatronPretraining"):
        return name == "ChatDataset"
    raise Unread(f"a plan has documents or conversations, not what {name} makes of its columns")


def _adapts(value: Value) -> str:
    if readers.text(value).rpartition(".")[2] == "PeftConfig":
        return "lora"
    raise Unread(why.ADAPTERS)


_CROSS_ENTROPY = tuple(
    f"nemo_automodel.components.loss.{name}"
    for name in (
        *(
            "masked_ce.MaskedCrossEntropy",
            "chunked_ce.ChunkedCrossEntropy",
            "te_parallel_ce.TEParallelCrossEntropy",
        ),
        "linear_ce.FusedLinearCrossEntropy",
    )
)
_FSDP2_OPTIONS = (
    *("tp_plan", "patch_is_packed_sequence", "autocast_dtype", "activation_checkpointing_scope"),
    *("defer_fsdp_grad_sync", "enable_async_tensor_parallel", "enable_compile", "enable_fsdp2_prefetch"),
    *("fsdp2_backward_prefetch_depth", "fsdp2_forward_prefetch_depth", "backend", "world_size"),
    *("broadcast_buffers", "find_unused_parameters", "static_graph", "bucket_cap_mb", "use_hf_tp_plan"),
)


def _packed(value: Value) -> int:
    if value in (0, None):
        raise Idle("0: documents are not packed")
    return readers.count(value)


def _schedule(value: Value) -> str:
    if isinstance(value, str) and value.upper() == "WSD":
        return "wsd"
    return readers.schedule(value)


_EXPERT_OPTIONS = (
    *("_target_", "ignore_router_for_ac", "reshard_after_forward", "lm_head_precision"),
    *("wrap_outer_model", "mp_policy", "mp_policy.**"),
)
_STAGE_OPTIONS = (
    *("_target_", "pp_*", "scale_grads_in_schedule", "round_virtual_stages_to_pp_multiple", "dtype"),
    *("layers_per_stage", "module_fqns_per_model_part", "module_fqns_per_model_part.**", "device"),
    *("patch_inner_model", "patch_causal_lm_model", "patch_stage_backward_maybe_with_nosync"),
)


def _pipeline(block: str) -> Iterator[Row]:
    yield Row(f"{block}.pp_schedule", facts.PIPELINE_SCHEDULE)
    yield Row(f"{block}.pp_microbatch_size", facts.PIPELINE_MICRO_BATCH)
    for key in _STAGE_OPTIONS:
        yield Row(f"{block}.{key}", reason=why.STAGES)


_SCHEDULER_OPTIONS = (
    *("_target_", "start_step", "start_epoch", "gc_every_steps", "log_remote_every_steps", "dp_size"),
    *("save_checkpoint_every_epoch", "handle_sigterm", "run_val_at_start"),
)
_EVALUATED = ("validation_dataset", "validation_dataloader", "validation_datasets", "val_dataset")
_ROWS = (
    Row("recipe", reason=why.LABEL),
    Row("recipe.**", reason=why.LABEL),
    Row("seed", facts.SEED),
    Row("rng.seed", facts.SEED),
    Row("rng.**", reason=why.DETERMINISTIC),
    Row("step_scheduler.global_batch_size", facts.GLOBAL_BATCH),
    Row("step_scheduler.local_batch_size", facts.MICRO_BATCH),
    Row("step_scheduler.max_steps", facts.STEPS),
    Row("step_scheduler.num_epochs", facts.EPOCHS),
    Row("step_scheduler.ckpt_every_steps", facts.SAVE_EVERY),
    Row("step_scheduler.val_every_steps", reason=why.EVALUATION),
    *(Row(f"step_scheduler.{key}", reason=why.INTERNAL) for key in _SCHEDULER_OPTIONS),
    Row("dist_env.backend", facts.BACKEND),
    Row("dist_env.timeout_minutes", facts.TIMEOUT_MINUTES),
    Row("dist_env.**", reason=why.INTERNAL),
    Row("model.pretrained_model_name_or_path", facts.MODEL),
    Row("model.config.pretrained_model_name_or_path", facts.MODEL),
    Row("model.revision", facts.REVISION),
    Row("model._target_", facts.PRETRAINED, read=_pretrained),
    Row("model.torch_dtype", facts.MODEL_DTYPE, read=_dtype),
    Row("model.dtype", facts.MODEL_DTYPE, read=_dtype),
    Row("model.attn_implementation", facts.ATTENTION),
    Row("model.trust_remote_code", reason=why.REMOTE_CODE, harmless=(False,)),
    Row("model.use_liger_kernel", reason="planc runs transformers' own modules", harmless=(False,)),
    Row("model.config._target_", reason=why.OWN_MODEL),
    Row("model.config.trust_remote_code", reason=why.REMOTE_CODE, harmless=(False,)),
    Row("model.backend.**", reason="planc runs transformers' own modules"),
    Row("model.**", change=why.OWN_MODEL),
    Row("distributed.strategy", facts.SHARDED, read=_sharded),
    Row("distributed._target_", facts.SHARDED, read=_sharded),
    Row("distributed.dp_size", facts.DP_SIZE),
    Row(
        "distributed.dp_replicate_size",
        facts.DP_REPLICATE,
        read=lambda value: readers.rest_or_count(value) or 1,
    ),
    Row("distributed.tp_size", facts.TP, read=lambda value: readers.rest_or_count(value) or 1),
    Row("distributed.cp_size", facts.CP, read=lambda value: readers.rest_or_count(value) or 1),
    Row("distributed.pp_size", facts.PP, read=lambda value: readers.rest_or_count(value) or 1),
    Row("distributed.ep_size", facts.EP, read=lambda value: readers.rest_or_count(value) or 1),
    Row("distributed.sequence_parallel", facts.SEQUENCE_PARALLEL),
    Row("distributed.activation_checkpointing", facts.RECOMPUTE),
    Row("distributed.reshard_after_forward", facts.RESHARD),
    Row("distributed.mp_policy.param_dtype", facts.PARAM_DTYPE),
    Row("distributed.mp_policy.reduce_dtype", facts.REDUCE_DTYPE),
    *(
        Row(f"distributed.mp_policy.{key}", reason="a module's outputs have `param_dtype`")
        for key in ("_target_", "output_dtype", "cast_forward_inputs")
    ),
    Row("distributed.offload_policy.**", reason="write `cpu_offload = true` in `fsdp`"),
    *_pipeline("distributed.pipeline"),
    *(Row(f"distributed.moe.{key}", reason=why.EXPERTS) for key in _EXPERT_OPTIONS),
    *(Row(f"distributed.{key}", reason=why.FSDP2) for key in _FSDP2_OPTIONS),
    *(Row(f"distributed.{key}.**", reason=why.FSDP2) for key in ("multimodal", "tp_plan", "moe_mesh")),
    Row("distributed_config.**", reason=why.FSDP2),
    Row("parallelizer.**", reason="planc's rules are patterns in `tensor_parallel` and `fsdp`"),
    *_pipeline("autopipeline"),
    Row("loss_fn", change=why.LOSS, harmless=_CROSS_ENTROPY),
    Row("loss_fn._target_", change=why.LOSS, harmless=_CROSS_ENTROPY),
    Row("loss_fn.**", reason="how the loss is computed, not which"),
    Row("dataset.path_or_dataset_id", facts.DATA),
    Row("dataset.path_or_dataset", facts.DATA),
    Row("dataset.dataset_name", facts.DATA),
    Row("dataset.seq_length", facts.SEQUENCE_LENGTH),
    Row("dataset._target_", facts.CHAT, read=_is_chat),
    Row("dataset.split", reason=why.HUB_DATA),
    Row("dataset.name", reason=why.HUB_DATA),
    Row("dataset.limit_dataset_samples", reason=why.HUB_DATA),
    Row("dataset.num_samples_limit", reason=why.HUB_DATA),
    Row("dataset.shuffle_seed", reason=why.DETERMINISTIC),
    Row("dataset.tokenizer.**", reason=why.TOKENIZER),
    Row("dataset.**", change=why.OWN_DATA),
    Row("packed_sequence.packed_sequence_size", facts.SEQUENCE_LENGTH, read=_packed),
    Row("packed_sequence.**", reason=why.PACKS),
    Row("dataloader.**", reason=why.LOADER),
    *(Row(f"{key}.**", reason=why.EVALUATION) for key in _EVALUATED),
    Row("optimizer._target_", facts.OPTIMIZER, read=_optimizer),
    Row("optimizer.lr", facts.LR),
    Row("optimizer.betas", facts.BETAS),
    Row("optimizer.eps", facts.EPS),
    Row("optimizer.weight_decay", facts.WEIGHT_DECAY),
    *(Row(f"optimizer.{key}", reason=why.INTERNAL) for key in ("foreach", "fused", "master_weights")),
    Row("optimizer.amsgrad", change=why.ARGUMENT, harmless=(False,)),
    Row("optimizer.**", change=why.ARGUMENT),
    Row("lr_scheduler.lr_decay_style", facts.SCHEDULE, read=_schedule),
    Row("lr_scheduler.lr_warmup_steps", facts.WARMUP),
    Row("lr_scheduler.min_lr", facts.MIN_LR),
    Row("lr_scheduler.lr_wsd_decay_steps", facts.DECAY_STEPS),
    Row("lr_scheduler.lr_decay_steps", reason="a schedule ends with the last step of `train.steps`"),
    Row("lr_scheduler.init_lr", change=why.WARMS_FROM_ZERO, harmless=(0, 0.0)),
    Row("lr_scheduler.**", change=why.SCHEDULE_ARGUMENT),
    Row("clip_grad_norm.max_norm", facts.CLIP),
    Row("max_grad_norm", facts.CLIP),
    Row("clip_grad_norm.**", reason="`clip_grad_norm` clips the global norm of all gradients"),
    Row("checkpoint.enabled", facts.SAVES),
    Row("checkpoint.checkpoint_dir", reason=why.RUN_DIR),
    Row("checkpoint.model_save_format", reason=why.EXPORT),
    Row("checkpoint.save_consolidated", reason=why.EXPORT),
    Row("checkpoint.is_async", facts.ASYNC, read=lambda value: "async" if readers.flag(value) else "sync"),
    Row("checkpoint.**", reason=why.LOADING),
    Row("compile.enabled", facts.COMPILE),
    Row("compile.fullgraph", facts.FULLGRAPH),
    Row("compile.dynamic", facts.DYNAMIC),
    Row("compile.**", reason=why.COMPILED),
    Row("peft", reason="off", harmless=(None, ())),
    Row("peft._target_", facts.ADAPTER, read=_adapts),
    Row("peft.dim", facts.LORA_RANK),
    Row("peft.alpha", facts.LORA_ALPHA),
    Row("peft.dropout", facts.LORA_DROPOUT),
    Row("peft.target_modules", facts.LORA_TARGETS),
    Row("peft.match_all_linear", facts.LORA_TARGETS, read=part_readers.every_linear),
    Row("peft.use_dora", facts.DORA),
    Row("peft.dropout_position", change="dropout in a plan is of an adapter's input", harmless=("pre",)),
    Row(
        "peft.lora_A_init", reason="A starts as torch's linear layers do, B with zeros", harmless=("uniform",)
    ),
    Row("peft.use_triton", reason=why.OF_ADAPTERS),
    Row("peft.use_memory_efficient_lora", reason=why.OF_ADAPTERS),
    Row("peft.**", change=why.ADAPTERS),
    Row("fp8.enabled", change=why.FLOAT8, harmless=(False,)),
    Row("fp8.**", reason=why.FLOAT8),
    Row("quantization.**", change=why.FLOAT8),
    Row("qat.**", change=why.FLOAT8),
    Row("wandb.project", facts.WANDB),
    Row("wandb.**", reason=why.LOGS),
    Row("mlflow.**", reason=why.LOGS),
    Row("logger.**", reason=why.LOGS),
    Row("benchmark.**", reason=why.PROFILE),
    Row("nsys.**", reason=why.PROFILE),
    Row("ci.**", reason=why.LAUNCH),
    Row("slurm.**", reason=why.LAUNCH),
)


def _faults(leaves: Mapping[str, Leaf]) -> Iterator[Note]:
    in_sequence, tp = leaves.get("distributed.sequence_parallel"), leaves.get("distributed.tp_size")
    if (
        in_sequence is not None
        and in_sequence.value is True
        and (tp is None or tp.value in (1, "none", None))
    ):
        yield wrong(in_sequence, "without tensor parallelism it does nothing")
    dropout, place = leaves.get("peft.dropout"), leaves.get("peft.dropout_position")
    if dropout is not None and dropout.value and place is None:
        yield note(
            NoteKind.CHANGED, dropout, "Automodel drops an adapter's output by default, a plan its input"
        )
    data, packed = leaves.get("dataset.seq_length"), leaves.get("packed_sequence.packed_sequence_size")
    if packed is not None and data is not None and _fits_no_document(packed.value, data.value):
        text = f"documents of up to {written(data.value)} tokens do not fit into packs"
        yield wrong(packed, f"{text} of {written(packed.value)}")


def _fits_no_document(pack: Value, document: Value) -> bool:
    return isinstance(pack, int) and isinstance(document, int) and 0 < pack < document


AUTOMODEL = Kind(
    name="automodel",
    title="NeMo Automodel",
    formats=("yaml",),
    marks=(
        *("step_scheduler.", "model._target_", "distributed.", "dist_env.", "loss_fn", "dataset._target_"),
        *(
            "rng.",
            "optimizer._target_",
            "recipe",
            "packed_sequence.",
            "validation_dataset.",
            "dataloader._target_",
        ),
    ),
    rows=_ROWS,
    defaults=(
        *((facts.OPTIMIZER, "adamw"), (facts.PARAM_DTYPE, "bfloat16"), (facts.REDUCE_DTYPE, "float32")),
        *((facts.CLIP, 1.0), (facts.LORA_RANK, 8), (facts.LORA_ALPHA, 32.0)),
    ),
    implied=((facts.SHARDED, True),),
    faults=_faults,
)
