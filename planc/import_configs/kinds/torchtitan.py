"""torchtitan: the TOML of its first versions, and the printed JSON of its Python configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.import_configs import facts, readers
from planc.import_configs.kind import Kind, Note, Row, wrong
from planc.import_configs.kinds import reasons as why
from planc.import_configs.leaves import Leaf, Value, written
from planc.import_configs.readers import Idle, Unread, among


def _reshards(value: Value) -> bool | None:
    """None for torchtitan's default, which depends on whether there is a pipeline."""
    return {"always": True, "never": False}.get(among(default="", always="always", never="never")(value))


def _batch(value: Value) -> int:
    if value == -1:
        raise Idle("-1 is one micro batch of each rank, as in a plan without `tokens_per_step`")
    return readers.count(value)


def _groups(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """Rows of the one group of parameters that takes all: its settings are the optimizer's."""
    at = _GROUPS + ".0"
    if any(key.startswith(f"{_GROUPS}.1.") for key in leaves) or _value(leaves, f"{at}.pattern") != ".*":
        return ()
    options = f"{at}.optimizer_kwargs"
    return (
        Row(f"{at}.pattern", reason="one group of all parameters, as in a plan without rules"),
        Row(f"{at}.optimizer_name", facts.OPTIMIZER),
        Row(f"{options}.lr", facts.LR),
        Row(f"{options}.betas", facts.BETAS),
        Row(f"{options}.eps", facts.EPS),
        Row(f"{options}.weight_decay", facts.WEIGHT_DECAY),
    )


def _recomputed(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """Rows of current configs, which tell the mode by the keys that it has."""
    table = "activation_checkpoint"
    if f"{table}.mode" in leaves or f"{table}.preserve_rng_state" not in leaves:
        return ()
    mode = "selective" if any(key.startswith(f"{table}.force_recompute") for key in leaves) else "full"
    return (Row(f"{table}.preserve_rng_state", reason=why.SELECTIVE, implies=((facts.RECOMPUTE, mode),)),)


def _value(leaves: Mapping[str, Leaf], key: str) -> Value:
    return leaves[key].value if key in leaves else None


_GROUPS = "optimizer.param_groups"


def _decay_type(value: Value) -> str:
    word = readers.text(value).lower()
    if word in ("linear", "cosine"):
        return word
    raise Unread(f"planc decays linearly or by a cosine, not by {written(value)}")


def _fused(value: Value) -> str:
    return "fused" if readers.flag(value) else "for_loop"


_SECONDS = "a plan has one timeout, `mesh.timeout`, for all of a run"
_PARTS = (
    *(
        Row("training.local_batch_size", facts.MICRO_BATCH),
        Row("training.batch_size", facts.MICRO_BATCH),
        Row("training.global_batch_size", facts.GLOBAL_BATCH, read=_batch),
        Row("training.seq_len", facts.SEQUENCE_LENGTH),
        Row(
            "training.max_context_length",
            facts.SEQUENCE_LENGTH,
            implies=((facts.MICRO_BATCH_TOKENS, 16_384),),
        ),
        Row("training.num_tokens_per_microbatch_per_dp_rank", facts.MICRO_BATCH_TOKENS),
        Row("training.num_tokens_per_train_step", facts.GLOBAL_TOKENS, read=_batch),
        Row("training.disable_cuda_graphs", reason=why.INTERNAL),
        Row("training.max_norm", facts.CLIP),
        Row("training.steps", facts.STEPS),
        Row("training.enable_cpu_offload", facts.OFFLOAD),
        Row("training.dtype", facts.MODEL_DTYPE),
        Row("training.mixed_precision_param", facts.PARAM_DTYPE),
        Row("training.mixed_precision_reduce", facts.REDUCE_DTYPE),
        Row("training.seed", facts.MODEL_SEED),
        Row("training.compile", facts.COMPILE),
        Row("training.warmup_steps", facts.WARMUP),
        Row("training.dataset", reason=why.HUB_DATA, opens=facts.DATA),
        Row("training.dataset_path", facts.DATA),
        Row("training.data_parallel_replicate_degree", facts.DP_REPLICATE),
        Row("training.data_parallel_shard_degree", facts.DP_SHARD),
        Row("training.tensor_parallel_degree", facts.TP),
        Row("training.deterministic", reason=why.DETERMINISTIC),
        Row("training.gc_freq", reason=why.INTERNAL),
        Row("training.gc_debug", reason=why.INTERNAL),
    ),
    *(
        Row("parallelism.data_parallel_replicate_degree", facts.DP_REPLICATE),
        Row("parallelism.data_parallel_shard_degree", facts.DP_SHARD),
        Row("parallelism.fsdp_reshard_after_forward", facts.RESHARD, read=_reshards),
        Row("parallelism.tensor_parallel_degree", facts.TP),
        Row("parallelism.enable_sequence_parallel", facts.SEQUENCE_PARALLEL),
        Row("parallelism.context_parallel_degree", facts.CP),
        Row("parallelism.context_parallel_rotate_method", facts.ROTATE),
        Row("parallelism.context_parallel_load_balancer", facts.BALANCER),
        Row("parallelism.pipeline_parallel_degree", facts.PP),
        Row("parallelism.pipeline_parallel_schedule", facts.PIPELINE_SCHEDULE),
        Row("parallelism.pipeline_parallel_microbatch_size", facts.PIPELINE_MICRO_BATCH),
        Row("parallelism.num_pp_microbatches", facts.MICRO_BATCHES),
        Row("parallelism.spmd_backend", reason=why.INTERNAL),
        Row("parallelism.context_parallel_ptrr_mask_key", reason=why.CP_BACKEND),
        Row("parallelism.expert_parallel_degree", facts.EP, implies=((facts.ETP, 1),)),
        Row("parallelism.expert_tensor_parallel_degree", facts.ETP),
        Row("parallelism.enable_async_tensor_parallel", reason=why.ASYNC_TP, harmless=(False,)),
        Row("parallelism.disable_loss_parallel", reason=why.LOSS_PARALLEL),
        Row("parallelism.enable_compiled_autograd", reason=why.INTERNAL, harmless=(False,)),
        Row("parallelism.full_dtensor", reason=why.INTERNAL, harmless=(False,)),
        Row("parallelism.enable_fsdp_symm_mem", reason=why.INTERNAL, harmless=(False,)),
        Row("parallelism.module_fqns_per_model_part", reason=why.STAGES),
        Row("parallelism.module_fqns_per_model_part.**", reason=why.STAGES),
        *(
            Row(f"parallelism.pipeline_parallel_{name}", reason=why.STAGES)
            for name in (
                *("schedule_csv", "layers_per_stage", "split_points"),
                *("first_stage_less_layers", "last_stage_less_layers"),
            )
        ),
    ),
    *(
        Row("activation_checkpoint.mode", facts.RECOMPUTE),
        Row("activation_checkpoint.selective_ac_option", reason=why.SELECTIVE),
        Row("activation_checkpoint.**", reason=why.SELECTIVE),
        Row("compile.enable", facts.COMPILE),
        Row("compile.components", reason=why.COMPILED),
        Row("compile.backend", reason=why.COMPILED, harmless=("inductor",)),
        Row("compile.enable_async_tensor_parallel", reason=why.ASYNC_TP, harmless=(False,)),
    ),
    *(
        Row("optimizer.name", facts.OPTIMIZER),
        Row("optimizer.lr", facts.LR),
        Row("optimizer.beta1", facts.BETA1),
        Row("optimizer.beta2", facts.BETA2),
        Row("optimizer.eps", facts.EPS),
        Row("optimizer.weight_decay", facts.WEIGHT_DECAY),
        Row("optimizer.implementation", facts.IMPLEMENTATION),
        Row("optimizer.fused", facts.IMPLEMENTATION, read=_fused),
        Row("optimizer.early_step_in_backward", reason=why.IN_BACKWARD, harmless=(False,)),
        Row(f"{_GROUPS}.*.optimizer_kwargs.lr", change=why.GROUPS, opens=facts.LR),
        Row(f"{_GROUPS}.**", change=why.GROUPS),
        Row("optimizer.optimizer_factory_kwargs_by_name", change=why.ARGUMENT),
        Row("optimizer.optimizer_factory_kwargs_by_name.**", change=why.ARGUMENT),
        Row("lr_scheduler.warmup_steps", facts.WARMUP),
        Row("lr_scheduler.decay_ratio", facts.DECAY_RATIO),
        Row("lr_scheduler.decay_type", facts.SCHEDULE, read=_decay_type),
        Row("lr_scheduler.min_lr_factor", facts.MIN_FACTOR),
        Row("lr_scheduler.lr_min", facts.MIN_FACTOR),
        Row("lr_scheduler.total_steps", change="a schedule ends with the last step of `train.steps`"),
    ),
    *(
        Row("checkpoint.enable", facts.SAVES),
        Row("checkpoint.enable_checkpoint", facts.SAVES),
        Row("checkpoint.interval", facts.SAVE_EVERY),
        Row("checkpoint.keep_latest_k", facts.KEEP_LAST),
        Row("checkpoint.async_mode", facts.ASYNC),
        Row("checkpoint.folder", reason=why.RUN_DIR),
        Row("checkpoint.export_dtype", reason=why.EXPORT),
        Row("checkpoint.last_save_in_hf", reason=why.EXPORT),
        Row("checkpoint.last_save_model_only", reason=why.WHOLE_STATE),
        Row("checkpoint.last_save_model_weights_only", reason=why.WHOLE_STATE),
        Row("checkpoint.initial_load_in_hf", facts.PRETRAINED),
        Row("checkpoint.initial_load_in_hf_quantized", change=why.FLOAT8, harmless=(False,)),
        Row("checkpoint.initial_load_path", change=why.FIRST_WEIGHTS, harmless=("",)),
        Row("checkpoint.**", reason=why.LOADING),
    ),
    *(
        Row("model.hf_assets_path", facts.MODEL),
        Row("model.tokenizer_path", reason=why.TOKENIZER),
        Row("hf_assets_path", facts.MODEL),
        Row("model.name", reason=why.OWN_MODEL),
        Row("model.flavor", reason=why.OWN_MODEL),
        Row("model_spec.**", reason=why.OWN_MODEL),
        Row("model.converters", change=why.CONVERTERS),
        Row("model.**", reason=why.OWN_MODEL),
        Row("tokenizer", reason=why.TOKENIZER),
        Row("tokenizer.**", reason=why.TOKENIZER),
        Row("model_converters.converters", change=why.CONVERTERS),
        Row("model_converters.converters.**", change=why.CONVERTERS),
        Row("model_converters.**", reason=why.CONVERTERS),
        Row("dataloader.dataset", reason=why.HUB_DATA, opens=facts.DATA),
        Row("dataloader.dataset.**", reason=why.HUB_DATA, opens=facts.DATA),
        Row("dataloader.dataset_path", facts.DATA),
        Row("dataloader.seed", facts.SHUFFLE_SEED),
        Row("dataloader.**", reason=why.LOADER),
    ),
    *(
        Row("metrics.log_freq", facts.LOG_EVERY),
        Row("metrics.enable_tensorboard", facts.TENSORBOARD),
        Row("metrics.enable_wandb", reason=why.WANDB, harmless=(False,)),
        Row("metrics.**", reason=why.LOGS),
        Row("profiling.**", reason=why.PROFILE),
        Row("profiler.**", reason=why.PROFILE),
        Row("validation.**", reason=why.EVALUATION),
        Row("validator.**", reason=why.EVALUATION),
        Row("comm.init_timeout_seconds", facts.TIMEOUT),
        Row("comm.train_timeout_seconds", reason=_SECONDS),
        Row("comm.**", reason=why.INTERNAL),
        Row("debug.seed", facts.MODEL_SEED),
        Row("debug.deterministic", reason=why.DETERMINISTIC),
        Row("debug.moe_force_load_balance", change="a plan's routers choose experts", harmless=(False,)),
        Row("loss.num_chunks", facts.LOSS_CHUNKS, read=lambda value: readers.count(value) > 1),
        Row("loss.global_vocab_size", reason=why.OWN_MODEL),
        Row("loss.loss_fn.global_vocab_size", reason=why.OWN_MODEL),
        Row("override.imports", change=why.OWN_MODEL),
        Row("override.imports.**", change=why.OWN_MODEL),
        Row("debug.**", reason=why.INTERNAL),
        Row("float8.**", reason=why.FLOAT8),
        Row("mx.**", reason=why.FLOAT8),
        Row("quantize.**", reason=why.FLOAT8),
        Row("fault_tolerance.**", reason=why.FAULT_TOLERANCE),
        Row("memory_estimation.**", reason="`planc estimate` works on any plan"),
        Row("experimental.**", reason=why.INTERNAL),
        Row("job.dump_folder", reason=why.RUN_DIR),
        Row("dump_folder", reason=why.RUN_DIR),
        Row("job.**", reason=why.LABEL),
    ),
)


def _faults(leaves: Mapping[str, Leaf]) -> Iterator[Note]:
    in_backward = leaves.get("optimizer.early_step_in_backward")
    if in_backward is not None and in_backward.value is True:
        yield wrong(
            in_backward,
            "the optimizer steps during backward: gradients are gone before `training.max_norm` clips them; "
            "the plan steps after backward",
        )
    tp = leaves.get("parallelism.enable_async_tensor_parallel")
    compiled = leaves.get("compile.enable") or leaves.get("training.compile")
    if tp is not None and tp.value is True and (compiled is None or compiled.value is not True):
        yield wrong(tp, "async tensor parallelism takes torch.compile, which is off")
    export = leaves.get("checkpoint.export_dtype")
    if export is not None and export.value == "float16":
        yield wrong(export, "float16 can't hold what bfloat16 can: large weights would become inf")


TORCHTITAN = Kind(
    name="torchtitan",
    title="torchtitan",
    warms_from_zero=False,
    formats=("toml", "json"),
    marks=(
        *("training.local_batch_size", "training.seq_len", "training.max_norm", "parallelism.", "job."),
        *("model.flavor", "lr_scheduler.warmup_steps", "lr_scheduler.decay_", "metrics.log_freq"),
        *("activation_checkpoint.mode", "optimizer.early_step_in_backward", "checkpoint.enable_checkpoint"),
        *("training.batch_size", "checkpoint.async_mode", "training.mixed_precision_param"),
        *("training.max_context_length", "training.num_tokens_per_train_step", "optimizer.param_groups."),
    ),
    rows=_PARTS,
    own_rows=lambda leaves: (*_groups(leaves), *_recomputed(leaves)),
    implied=((facts.SHARDED, True), (facts.SEQUENCE_PARALLEL, True)),
    defaults=(
        (facts.OPTIMIZER, "adamw"),
        (facts.LR, 8e-4),
        (facts.BETA1, 0.9),
        (facts.BETA2, 0.95),
        (facts.EPS, 1e-8),
        (facts.WEIGHT_DECAY, 0.1),
        (facts.CLIP, 1.0),
        (facts.WARMUP, 200),
        (facts.SCHEDULE, "linear"),
        (facts.SEQUENCE_LENGTH, 2048),
        (facts.MICRO_BATCH, 8),
        (facts.STEPS, 10_000),
        (facts.PARAM_DTYPE, "bfloat16"),
        (facts.REDUCE_DTYPE, "float32"),
        (facts.RECOMPUTE, "selective"),
        (facts.ROTATE, "allgather"),
        (facts.MODEL_DTYPE, "float32"),
    ),
    faults=_faults,
)
