"""transformers' TrainingArguments as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.import_configs import facts, readers
from planc.import_configs.kind import Kind, Note, Row, under, wrong
from planc.import_configs.kinds import reasons as why
from planc.import_configs.kinds.accelerate import DEGREES, HANDLERS, OWN_FSDP_ROWS, fsdp_faults
from planc.import_configs.kinds.deepspeed import DEEPSPEED_ROWS, deepspeed_faults
from planc.import_configs.leaves import Leaf, Value, written
from planc.import_configs.readers import Idle, Unread


def _saves(value: Value) -> bool:
    word = readers.text(value).lower()
    if word in ("steps", "no"):
        return word == "steps"
    raise Unread(f"a plan saves by steps (`save_every = 500 steps`), not by {written(value)}")


def _sharding(value: Value) -> tuple[str, ...]:
    if value in ((), "", None):
        raise Idle("off: ranks hold whole replicas")
    return readers.shard_words(value)


def _deepspeed(value: Value) -> int:
    raise Unread(why.OTHER_FILE) if isinstance(value, str) and value else Idle("off")


def _interval(value: Value) -> int:
    if isinstance(value, float) and 0 < value < 1:
        raise Unread("a share of all steps: a plan counts steps")
    return readers.count(value)


_INTERNAL = (
    *("disable_tqdm", "log_level", "log_level_replica", "log_on_each_node", "logging_nan_inf_filter"),
    *(
        "logging_first_step",
        "include_num_input_tokens_seen",
        "include_tokens_per_second",
        "skip_memory_metrics",
    ),
    *("remove_unused_columns", "label_names", "use_cache", "do_train", "do_predict", "local_rank", "debug"),
    *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
    *("torch_empty_cache_steps", "auto_find_batch_size", "tf32", "jit_mode_eval", "use_ipex", "ray_scope"),
    *(
        "accelerator_config",
        "past_index",
        "mp_parameters",
        "no_cuda",
        "use_mps_device",
        "_n_gpu",
        "tpu_num_cores",
    ),
    *("tpu_metrics_debug", "xpu_backend", "half_precision_backend", "fp16_backend", "fp16_opt_level"),
    *("torchdynamo", "ignore_data_skip", "full_determinism", "enable_jit_checkpoint"),
    *("restore_callback_states_from_checkpoint", "fp16_full_eval", "bf16_full_eval", "deepspeed_plugin"),
    *("distributed_state", "cached_setup_devices", "overwrite_output_dir", "save_safetensors", "use_cpu"),
    *("save_on_each_node", "liger_kernel_config", "logging_strategy", "dataset_num_proc", "dataset_kwargs"),
)
_EVALUATION = (
    *("eval_strategy", "evaluation_strategy", "eval_steps", "eval_delay", "eval_on_start", "do_eval"),
    *("per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_accumulation_steps", "eval_packing"),
    *("eval_do_concat_batches", "eval_use_gather_object", "prediction_loss_only", "include_for_metrics"),
    *("batch_eval_metrics", "include_inputs_for_metrics", "load_best_model_at_end", "metric_for_best_model"),
    *("greater_is_better", "early_stopping_patience"),
)
_LOADER = (
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
    *("dataloader_prefetch_factor", "dataloader_drop_last", "dataloader_multiprocessing_context"),
    *("dataloader_in_order", "group_by_length", "length_column_name", "train_sampling_strategy"),
)
_HUB = (
    *("push_to_hub", "hub_model_id", "hub_token", "hub_private_repo", "hub_strategy", "hub_always_push"),
    *("hub_revision", "push_to_hub_model_id", "push_to_hub_organization", "push_to_hub_token"),
)
ARGUMENT_ROWS = (
    Row("per_device_train_batch_size", facts.MICRO_BATCH),
    Row("per_gpu_train_batch_size", facts.MICRO_BATCH),
    Row("gradient_accumulation_steps", facts.ACCUMULATION),
    Row("max_steps", facts.STEPS),
    Row("num_train_epochs", facts.EPOCHS),
    Row("learning_rate", facts.LR),
    Row("weight_decay", facts.WEIGHT_DECAY),
    Row("adam_beta1", facts.BETA1),
    Row("adam_beta2", facts.BETA2),
    Row("adam_epsilon", facts.EPS),
    Row("max_grad_norm", facts.CLIP),
    Row("optim", facts.OPTIMIZER),
    Row("adafactor", change="planc has adamw and sgd", harmless=(False,)),
    Row("lr_scheduler_type", facts.SCHEDULE),
    Row("warmup_steps", facts.WARMUP),
    Row("warmup_ratio", facts.WARMUP_RATIO),
    Row("lr_scheduler_kwargs.min_lr", facts.MIN_LR),
    Row("lr_scheduler_kwargs.min_lr_rate", facts.MIN_FACTOR),
    Row("lr_scheduler_kwargs.num_decay_steps", facts.DECAY_STEPS),
    Row("lr_scheduler_kwargs.**", change=why.SCHEDULE_ARGUMENT),
    Row("bf16", facts.PARAM_DTYPE, read=readers.bfloat16_if),
    Row("fp16", change=why.HALF, harmless=(False,)),
    Row("gradient_checkpointing", facts.RECOMPUTE),
    Row("activation_checkpointing", facts.RECOMPUTE),
    Row("gradient_checkpointing_kwargs.**", reason=why.REENTRANT),
    Row("activation_checkpointing_kwargs.**", reason=why.REENTRANT),
    Row("torch_compile", facts.COMPILE),
    Row("torch_compile_backend", reason=why.COMPILED, harmless=("inductor",)),
    Row("torch_compile_mode", reason=why.COMPILED, harmless=("default",)),
    Row("use_liger_kernel", facts.LOSS_CHUNKS),
    Row("seed", facts.SEED),
    Row("data_seed", facts.SHUFFLE_SEED),
    Row("average_tokens_across_devices", reason=why.TOKEN_MEAN, harmless=(True,)),
    Row("label_smoothing_factor", facts.LABEL_SMOOTHING),
    Row("neftune_noise_alpha", change=why.LOSS, harmless=(0, 0.0)),
    Row("logging_steps", facts.LOG_EVERY, read=_interval),
    Row("save_strategy", facts.SAVES, read=_saves),
    Row("save_steps", facts.SAVE_EVERY, read=_interval),
    Row("save_total_limit", facts.KEEP_LAST),
    Row("save_only_model", reason=why.WHOLE_STATE, harmless=(False,)),
    Row("resume_from_checkpoint", reason=why.LOADING),
    Row("output_dir", reason=why.RUN_DIR),
    Row("logging_dir", reason=why.RUN_DIR),
    Row("run_name", reason=why.LABEL),
    Row("report_to", facts.TRACKERS),
    Row("project", reason='`tracker "wandb"` in `logging` has the project', harmless=("huggingface",)),
    Row("ddp_backend", facts.BACKEND),
    Row("ddp_timeout", facts.TIMEOUT),
    Row("fsdp", facts.STRATEGY, read=_sharding),
    Row("fsdp_min_num_params", reason=why.UNITS, harmless=(0,)),
    Row("fsdp_transformer_layer_cls_to_wrap", reason=why.UNITS),
    *OWN_FSDP_ROWS,
    *(Row(f"fsdp_config.{key}", reason=why.FSDP2) for key in ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt")),
    Row("fsdp_config.xla_fsdp_settings.**", reason=why.FSDP2),
    Row("deepspeed", facts.ZERO_STAGE, read=_deepspeed, names="deepspeed"),
    *under("deepspeed", DEEPSPEED_ROWS),
    *under("parallelism_config", DEGREES),
    *under("parallelism_config", HANDLERS),
    *(Row(f"accelerator_config.{key}", reason=why.INTERNAL) for key in ("*", "*.*")),
    *(Row(key, reason=why.INTERNAL) for key in _INTERNAL),
    *(Row(key, reason=why.EVALUATION) for key in _EVALUATION),
    *(Row(key, reason=why.LOADER) for key in _LOADER),
    *(Row(key, reason=why.HUB_UPLOAD) for key in _HUB),
    Row("trackio_space_id", reason=why.LOGS),
    Row("trackio_bucket_id", reason=why.LOGS),
    Row("trackio_static_space_id", reason=why.LOGS),
    Row("launch.**", reason=why.LAUNCH),
    Row("optim_args", change=why.ARGUMENT, harmless=("",)),
    Row("optim_target_modules", change="planc has adamw and sgd"),
)
"""Axolotl recipes take most of these too."""


def argument_faults(leaves: Mapping[str, Leaf]) -> Iterator[Note]:
    """Report values that can't be right in TrainingArguments."""

    def at(key: str, value: Value) -> Leaf | None:
        leaf = leaves.get(key)
        return leaf if leaf is not None and leaf.value is value else None

    half = at("fp16", True)
    if half is not None and at("bf16", True) is not None:
        yield wrong(half, "transformers refuses fp16 and bf16 at once; the plan has bfloat16")
    mean = at("average_tokens_across_devices", False)
    if mean is not None:
        text = "each rank averages over its own tokens, so gradients depend on which rank has which sample"
        yield wrong(mean, f"{text}; a plan averages over all tokens of a step")
    best, evaluated = at("load_best_model_at_end", True), leaves.get("eval_strategy")
    if best is not None and (evaluated is None or evaluated.value == "no"):
        yield wrong(best, "without evaluations there is nothing to choose the best by")
    steps, epochs = leaves.get("max_steps"), leaves.get("num_train_epochs")
    if steps is not None and isinstance(steps.value, int) and steps.value > 0 and epochs is not None:
        yield wrong(epochs, f"`max_steps` in line {steps.line} wins, so this key has no effect")
    sharded = leaves.get("fsdp")
    zero = next((leaf for key, leaf in leaves.items() if key.startswith("deepspeed")), None)
    if zero is not None and zero.value and sharded is not None and sharded.value not in ((), "", None, False):
        yield wrong(zero, f"`fsdp` in line {sharded.line} and DeepSpeed can't both shard the model")
    yield from fsdp_faults(leaves)
    yield from deepspeed_faults(leaves, prefix="deepspeed.")


def offloading_rows(leaves: Mapping[str, Leaf], *, recomputes: bool) -> tuple[Row, ...]:
    """Rows of a file whose recomputed layers keep their inputs in host memory.

    Where nothing is recomputed, tools move everything that backward needs, which no plan does.
    """
    moved = leaves.get("activation_offloading")
    if moved is None or moved.value not in (True, "legacy"):
        return ()
    keys = [key for key in ("gradient_checkpointing", "activation_checkpointing") if key in leaves]
    if not all(leaves[key].value is True for key in keys) or not (keys or recomputes):
        return ()
    return tuple(Row(key, facts.RECOMPUTE, read=lambda value: "offload") for key in (*keys, moved.key))


ARGUMENT_DEFAULTS = (
    (facts.MICRO_BATCH, 8),
    (facts.WEIGHT_DECAY, 0.0),
    (facts.CLIP, 1.0),
    (facts.SCHEDULE, "linear"),
    (facts.SEED, 42),
    (facts.EPOCHS, 3.0),
)

TRAINING_ARGUMENTS = Kind(
    name="training-arguments",
    title="transformers' TrainingArguments",
    formats=("json", "yaml"),
    marks=(
        *(
            "per_device_train_batch_size",
            "num_train_epochs",
            "lr_scheduler_type",
            "adam_beta1",
            "logging_steps",
        ),
        *("adam_epsilon", "save_total_limit", "ddp_timeout", "report_to", "output_dir"),
        *("dataloader_num_workers", "warmup_ratio", "max_steps"),
    ),
    rows=ARGUMENT_ROWS,
    implied=((facts.SHARDED, False),),
    defaults=((facts.LR, 5e-5), *ARGUMENT_DEFAULTS),
    spares_norms=True,
    faults=argument_faults,
)
