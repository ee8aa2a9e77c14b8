"""DeepSpeed's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.import_configs import facts, readers
from planc.import_configs.kind import Kind, Note, NoteKind, Row, wrong
from planc.import_configs.kinds import reasons as why
from planc.import_configs.leaves import Leaf, Value
from planc.import_configs.readers import Idle


def _optimizer(value: Value) -> str:
    """DeepSpeed's Adam decays the weights, as AdamW does, unless `adam_w_mode` is off."""
    kind = readers.optimizer(value)
    return "adamw" if kind == "adam" else kind


def _tracked(value: Value) -> bool:
    if not readers.flag(value):
        raise Idle("off: planc writes metrics.jsonl")
    return True


_OFFLOAD_KEYS = (
    *("pin_memory", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline", "pipeline_read"),
    *("pipeline_write", "fast_init", "ratio", "super_offload", "cpuadam_cores_perc"),
)
_ZERO_KEYS = (
    *("contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce"),
    *("allgather_partitions", "allgather_bucket_size", "overlap_comm", "load_from_fp32_weights"),
    *("elastic_checkpoint", "sub_group_size", "cpu_offload_use_pin_memory", "ignore_unused_parameters"),
    *("legacy_stage1", "round_robin_gradients", "mics_shard_size", "mics_hierarchical_params_gather"),
    *("memory_efficient_linear", "pipeline_loading_checkpoint", "override_module_apply"),
    *("log_trace_cache_warnings", "allow_untested_optimizer", "stage3_*", "prefetch_bucket_size"),
    *("param_persistence_threshold", "model_persistence_threshold", "max_live_parameters"),
    *("max_reuse_distance", "gather_16bit_weights_on_model_save"),
)
"""The keys of ZeRO: when and in which pieces it communicates."""
_WARMUP_TYPE = "scheduler.params.warmup_type"
_OWN_TRAINING = (
    *("curriculum_learning", "data_efficiency", "progressive_layer_drop", "compression_training"),
    *("quantize_training", "fp8", "hybrid_engine", "eigenvalue"),
)
"""Tables that change what is trained, where they are enabled."""


DEEPSPEED_ROWS = (
    Row("train_batch_size", facts.GLOBAL_BATCH),
    Row("train_micro_batch_size_per_gpu", facts.MICRO_BATCH),
    Row("gradient_accumulation_steps", facts.ACCUMULATION),
    Row("gradient_clipping", facts.CLIP),
    Row("bf16.enabled", facts.PARAM_DTYPE, read=readers.bfloat16_if),
    Row("bfloat16.enabled", facts.PARAM_DTYPE, read=readers.bfloat16_if),
    Row("bf16.**", reason=why.INTERNAL),
    Row("fp16.enabled", change=why.HALF, harmless=(False, "auto")),
    Row("fp16.**", reason=why.HALF),
    Row("amp.enabled", change=why.HALF, harmless=(False, "auto")),
    Row("amp.**", reason=why.HALF),
    Row("communication_data_type", facts.REDUCE_DTYPE),
    Row("data_types.grad_accum_dtype", reason="gradients are accumulated in `model.dtype`"),
    Row("zero_optimization.stage", facts.ZERO_STAGE),
    Row("zero_optimization.offload_optimizer.device", facts.OFFLOAD, read=readers.offload_device),
    Row("zero_optimization.offload_param.device", facts.OFFLOAD, read=readers.offload_device),
    Row("zero_optimization.cpu_offload", facts.OFFLOAD),
    *(
        Row(f"zero_optimization.{table}.{key}", reason=why.OFFLOADED)
        for table in ("offload_optimizer", "offload_param")
        for key in _OFFLOAD_KEYS
    ),
    Row("zero_optimization.stage3_gather_16bit_weights_on_model_save", reason=why.EXPORT),
    Row("zero_optimization.stage3_gather_fp16_weights_on_model_save", reason=why.EXPORT),
    Row(
        "zero_optimization.zero_hpz_partition_size", reason="HSDP is `replicate_on = dp_replicate` in `fsdp`"
    ),
    *(Row(f"zero_optimization.{key}", reason=why.BUCKETS) for key in _ZERO_KEYS),
    *(
        Row(f"zero_optimization.zero_quantized_{name}", change=why.FLOAT8, harmless=(False,))
        for name in ("weights", "gradients", "nontrainable_weights")
    ),
    Row("optimizer.type", facts.OPTIMIZER, read=_optimizer, implies=((facts.WEIGHT_DECAY, 0.0),)),
    Row("optimizer.params.lr", facts.LR),
    Row("optimizer.params.betas", facts.BETAS),
    Row("optimizer.params.eps", facts.EPS),
    Row("optimizer.params.weight_decay", facts.WEIGHT_DECAY),
    Row("optimizer.params.momentum", facts.MOMENTUM),
    Row("optimizer.params.adam_w_mode", change=why.ADAM, harmless=(True,)),
    Row("optimizer.params.torch_adam", reason=why.INTERNAL),
    Row("optimizer.params.bias_correction", change=why.ARGUMENT, harmless=(True,)),
    Row("optimizer.params.amsgrad", change=why.ARGUMENT, harmless=(False,)),
    Row("optimizer.params.**", change=why.ARGUMENT),
    Row("optimizer.legacy_fusion", reason=why.INTERNAL),
    Row("scheduler.type", facts.SCHEDULE, implies=((facts.WARMUP, 1000),)),
    Row("scheduler.params.warmup_max_lr", facts.LR),
    Row("scheduler.params.warmup_num_steps", facts.WARMUP),
    Row("scheduler.params.total_num_steps", facts.STEPS),
    Row("scheduler.params.cos_min_ratio", facts.MIN_FACTOR),
    Row("scheduler.params.warmup_min_lr", change=why.WARMS_FROM_ZERO, harmless=(0, 0.0, "auto")),
    Row("scheduler.params.warmup_min_ratio", change=why.WARMS_FROM_ZERO, harmless=(0, 0.0)),
    Row(_WARMUP_TYPE, change="warm-up in a plan is linear", harmless=("linear",)),
    Row("scheduler.params.**", change=why.SCHEDULE_ARGUMENT),
    Row("tensor_parallel.autotp_size", facts.TP),
    Row("tensor_parallel.**", reason="`auto` in `tensor_parallel` takes the model's own rules"),
    Row("sequence_parallel_size", facts.ULYSSES),
    Row("pipeline.**", reason="its stages are in code: write `pp` in `mesh` and add `pipeline on pp`"),
    Row("activation_checkpointing.**", reason=why.DS_RECOMPUTE),
    Row("steps_per_print", facts.LOG_EVERY),
    Row("tensorboard.enabled", facts.TENSORBOARD, read=_tracked),
    Row("wandb.project", facts.WANDB),
    Row("wandb.enabled", reason=why.WANDB, harmless=(False,)),
    Row("wandb.**", reason=why.LOGS),
    Row("tensorboard.**", reason=why.LOGS),
    Row("monitor_config.**", reason=why.LOGS),
    Row("csv_monitor.**", reason=why.LOGS),
    Row("comet.**", reason=why.LOGS),
    Row("flops_profiler.**", reason="`planc estimate` counts FLOPs; `profile` traces steps"),
    Row("wall_clock_breakdown", reason=why.PROFILE, harmless=(False,)),
    Row("memory_breakdown", reason=why.PROFILE, harmless=(False,)),
    Row("dump_state", reason=why.LOGS, harmless=(False,)),
    Row("comms_logger.**", reason=why.PROFILE),
    Row("comms_config.**", reason=why.PROFILE),
    Row("checkpoint.**", reason=why.SHARDED_STATE),
    Row("elasticity.**", reason="the nearest is `elastic`, which resumes on fewer nodes"),
    Row("autotuning.**", reason="`planc tune` searches plans without a run"),
    *(Row(f"{key}.enabled", change=why.OWN_TRAINING, harmless=(False,)) for key in _OWN_TRAINING),
    *(Row(f"{key}.**", reason=why.OWN_TRAINING) for key in _OWN_TRAINING if key != "compression_training"),
    Row("compression_training.**", change=why.FLOAT8),
    Row("sparse_attention.**", change="planc's attention is sdpa or eager"),
    Row("expert_parallel.**", reason=why.EXPERTS),
    Row("aio.**", reason="planc does not offload to disks"),
    Row("compile.**", reason=why.COMPILED),
    *(
        Row(key, reason=why.INTERNAL)
        for key in (
            *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "prescale_gradients"),
            *("gradient_predivide_factor", "sparse_gradients", "disable_allgather", "fp32_allreduce"),
            *("dataloader_drop_last", "seq_parallel_communication_data_type", "_comment", "graph_harvesting"),
            "use_data_before_expert_parallelism",
        )
    ),
)
"""Rows by dotted key; TrainingArguments and recipes can hold the same table below `deepspeed`."""


def deepspeed_faults(leaves: Mapping[str, Leaf], *, prefix: str = "") -> Iterator[Note]:
    """Report values that can't be right in a DeepSpeed config."""

    def at(key: str) -> Leaf | None:
        return leaves.get(prefix + key)

    def value(key: str) -> Value:
        leaf = at(key)
        return leaf.value if leaf is not None else None

    half = at("fp16.enabled")
    if half is not None and half.value is True and value("bf16.enabled") is True:
        yield wrong(half, "DeepSpeed refuses fp16 and bf16 at once; the plan has bfloat16")
    stage = value("zero_optimization.stage")
    if isinstance(stage, int) and stage < 3:
        for leaf in leaves.values():
            if leaf.key.startswith(f"{prefix}zero_optimization.stage3_"):
                yield wrong(leaf, f"stage {stage} does not read this key")
        offloaded = at("zero_optimization.offload_param.device")
        if offloaded is not None and offloaded.value not in (None, "none"):
            yield wrong(offloaded, f"stage {stage} does not shard parameters, so they are not offloaded")
    peak, most = at("optimizer.params.lr"), at("scheduler.params.warmup_max_lr")
    if most is not None and peak is not None and isinstance(peak.value, float) and most.value != peak.value:
        text = "the scheduler sets the rate of every step, so the optimizer's own is never used"
        if isinstance(most.value, float):
            yield wrong(peak, text)
    warms = (
        str(value("scheduler.type")).startswith("Warmup") and value("scheduler.params.warmup_num_steps") != 0
    )
    if warms and at(_WARMUP_TYPE) is None:
        text = "DeepSpeed warms up by a logarithm by default, a plan along a line"
        yield Note(NoteKind.CHANGED, prefix + _WARMUP_TYPE, text)
    total, warmup = value("scheduler.params.total_num_steps"), at("scheduler.params.warmup_num_steps")
    if (
        warmup is not None
        and isinstance(total, int)
        and isinstance(warmup.value, int)
        and total < warmup.value
    ):
        yield wrong(warmup, f"warm-up is longer than all {total} steps")


AUTOMATIC = (
    (facts.CLIP, 1.0),
    (facts.WEIGHT_DECAY, 0.0),
    (facts.BETAS, (0.9, 0.999)),
    (facts.EPS, 1e-8),
)
"""The defaults of transformers' Trainer, which fills in `auto`."""


DEEPSPEED = Kind(
    name="deepspeed",
    title="DeepSpeed",
    formats=("json",),
    marks=(
        *("zero_optimization.", "train_micro_batch_size_per_gpu", "train_batch_size", "steps_per_print"),
        *("zero_allow_untested_optimizer", "wall_clock_breakdown", "bf16.enabled", "fp16.enabled"),
        *("scheduler.params.", "optimizer.params.", "gradient_clipping"),
    ),
    rows=DEEPSPEED_ROWS,
    implied=((facts.SHARDED, False),),
    automatic=AUTOMATIC,
    is_part=True,
    faults=deepspeed_faults,
)
