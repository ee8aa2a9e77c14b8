"""accelerate: the YAML that `accelerate config` writes, with FSDP, DeepSpeed or a parallelism config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planc.import_configs import facts, readers
from planc.import_configs.kind import Kind, Note, Row, under, wrong
from planc.import_configs.kinds import reasons as why
from planc.import_configs.kinds.deepspeed import AUTOMATIC
from planc.import_configs.leaves import Leaf, Value, written
from planc.import_configs.readers import Idle, Unread


def _distributed(value: Value) -> bool:
    word = "NO" if value is False else readers.text(value).upper()
    if word in ("FSDP", "NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU"):
        return word == "FSDP"
    if word == "DEEPSPEED":
        raise Idle("`zero_stage` decides what is sharded")
    raise Unread(f"planc trains by FSDP2, tensor and context parallelism, not by {written(value)}")


def precision(value: Value) -> str:
    """The dtype of compute of mixed precision."""
    if value is False or (isinstance(value, str) and value.lower() == "no"):
        raise Idle("off: a plan computes in `model.dtype`")
    return readers.dtype(value)


def _compiled(value: Value) -> bool:
    word = readers.text(value).upper()
    if word in ("NO", "INDUCTOR"):
        return word == "INDUCTOR"
    raise Unread(f"`compile` has backends inductor, aot_eager and eager, not {written(value)}")


def _cpu(value: Value) -> str:
    if readers.flag(value):
        return "gloo"
    raise Idle("`backend = auto` takes nccl where CUDA is available")


FSDP_ROWS = (
    Row("activation_checkpointing", facts.RECOMPUTE),
    Row("auto_wrap_policy", facts.UNITS),
    Row("transformer_layer_cls_to_wrap", reason=why.UNITS),
    Row("transformer_layer_cls_to_wrap.**", reason=why.UNITS),
    Row("min_num_params", reason=why.UNITS),
    Row("sharding_strategy", facts.STRATEGY),
    Row("reshard_after_forward", facts.RESHARD),
    Row("offload_params", facts.OFFLOAD),
    Row("state_dict_type", reason=why.SHARDED_STATE, harmless=("SHARDED_STATE_DICT",)),
    Row("final_state_dict_type", reason=why.EXPORT),
    Row("cpu_ram_efficient_loading", reason=why.SLICES, harmless=(True,)),
    Row("sync_module_states", reason=why.SLICES, harmless=(True,)),
    Row("use_orig_params", reason=why.FSDP2, harmless=(True,)),
    Row("backward_prefetch", reason=why.FSDP2),
    Row("backward_prefetch_policy", reason=why.FSDP2),
    Row("forward_prefetch", reason=why.FSDP2),
    Row("limit_all_gathers", reason=why.FSDP2, harmless=(True,)),
    Row("version", reason=why.FSDP2, harmless=(2,)),
    Row("mixed_precision_policy", facts.PARAM_DTYPE, read=precision),
)
"""The rows of a table of FSDP's options, without the prefix `fsdp_` of accelerate."""


OWN_FSDP_ROWS = tuple(
    replace(row, key=f"fsdp_config.{prefix}{row.key}") for prefix in ("", "fsdp_") for row in FSDP_ROWS
)
"""FSDP's rows below accelerate's key, with and without their own prefix."""


DEGREES = (
    Row("tp_size", facts.TP),
    Row("cp_size", facts.CP),
    Row("sp_size", facts.ULYSSES),
    Row("dp_replicate_size", facts.DP_REPLICATE),
    Row("dp_shard_size", facts.DP_SHARD),
    Row("cp_comm_strategy", facts.ROTATE),
)

HANDLERS = (
    Row("cp_backend", reason=why.CP_BACKEND, harmless=("torch",)),
    Row("sp_backend", reason=why.CP_BACKEND),
    *(Row(f"{dim}_handler.**", reason=why.CP_BACKEND) for dim in ("tp", "cp", "sp")),
    *(Row(f"sp_{name}", reason=why.CP_BACKEND) for name in ("seq_length", "attn_implementation")),
    Row("sp_seq_length_is_variable", reason=why.CP_BACKEND),
)

_DEEPSPEED = (
    Row("zero_stage", facts.ZERO_STAGE),
    Row("gradient_accumulation_steps", facts.ACCUMULATION),
    Row("gradient_clipping", facts.CLIP),
    Row("offload_optimizer_device", facts.OFFLOAD, read=readers.offload_device),
    Row("offload_param_device", facts.OFFLOAD, read=readers.offload_device),
    Row("zero3_init_flag", reason=why.SLICES),
    Row("zero3_save_16bit_model", reason=why.EXPORT, harmless=(False,)),
    Row("deepspeed_config_file", change=why.OTHER_FILE, names="deepspeed"),
    Row("deepspeed_multinode_launcher", reason=why.LAUNCH),
    Row("deepspeed_hostfile", reason=why.LAUNCH),
    Row("deepspeed_inclusion_filter", reason=why.LAUNCH),
    Row("deepspeed_exclusion_filter", reason=why.LAUNCH),
    Row("deepspeed_moe_layer_cls_names", reason=why.EXPERTS),
    Row("seq_parallel_communication_data_type", reason=why.INTERNAL),
)

_ROWS = (
    Row("distributed_type", facts.SHARDED, read=_distributed),
    Row("num_processes", facts.WORLD_SIZE),
    Row("num_machines", facts.NODES),
    Row("mixed_precision", facts.PARAM_DTYPE, read=precision),
    Row("gradient_accumulation_steps", facts.ACCUMULATION),
    Row("gradient_clipping", facts.CLIP),
    Row("use_cpu", facts.BACKEND, read=_cpu),
    *OWN_FSDP_ROWS,
    *(
        replace(row, key=f"parallelism_config.{prefix}{row.key}")
        for prefix in ("parallelism_config_", "")
        for row in DEGREES
    ),
    *under("parallelism_config", HANDLERS),
    *(replace(row, key=f"parallelism_config.parallelism_config_{row.key}") for row in HANDLERS),
    Row("tp_config.tp_size", facts.TP),
    *under("deepspeed_config", _DEEPSPEED),
    Row("dynamo_config.dynamo_backend", facts.COMPILE, read=_compiled),
    Row("dynamo_backend", facts.COMPILE, read=_compiled),
    Row("dynamo_config.dynamo_use_fullgraph", facts.FULLGRAPH),
    Row("dynamo_config.dynamo_use_dynamic", facts.DYNAMIC),
    Row("dynamo_config.dynamo_mode", reason=why.COMPILED, harmless=("default",)),
    Row("dynamo_config.dynamo_use_regional_compilation", reason=why.COMPILED, harmless=(True,)),
    Row("fp8_config.**", reason=why.FLOAT8),
    Row("megatron_lm_config.**", change="planc does not train by Megatron-LM; its degrees are mesh dims"),
    Row("ipex_config.**", reason=why.INTERNAL),
    Row("mpirun_config.**", reason=why.LAUNCH),
    Row("downcast_bf16", reason="for TPUs, which planc does not train on", harmless=("no", False)),
    *(
        Row(key, reason=why.LAUNCH)
        for key in (
            *("compute_environment", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend"),
            *("same_network", "gpu_ids", "main_training_function", "enable_cpu_affinity", "debug"),
            *("deepspeed_hostfile", "command_file", "commands", "base_job_name", "profile", "region"),
            *("ec2_instance_type", "iam_role_name", "image_uri", "additional_args"),
        )
    ),
    *(
        Row(f"tpu_{key}", reason="for TPUs, which planc does not train on", harmless=(False, ()))
        for key in ("name", "zone", "env", "vm", "use_cluster", "use_sudo")
    ),
)


def fsdp_faults(leaves: Mapping[str, Leaf]) -> Iterator[Note]:
    """Report values that can't be right in a table of FSDP's options."""

    def option(name: str) -> Leaf | None:
        return leaves.get(f"fsdp_config.fsdp_{name}") or leaves.get(f"fsdp_config.{name}")

    wrap = option("auto_wrap_policy")
    if wrap is not None and wrap.value == "NO_WRAP":
        text = "without wrapping, all parameters are one unit: each rank gathers the whole model at once"
        yield wrong(wrap, text)
    recompute = option("activation_checkpointing")
    if recompute is not None and recompute.value is True:
        also = leaves.get("gradient_checkpointing")
        if also is not None and also.value is True:
            yield wrong(
                recompute,
                f"`gradient_checkpointing` in line {also.line} is on too: layers would be recomputed twice",
            )
    version, strategy = option("version"), option("sharding_strategy")
    if version is not None and version.value == 2 and strategy is not None:
        yield wrong(strategy, "FSDP2 does not read this key: `fsdp_reshard_after_forward` decides")


def _faults(leaves: Mapping[str, Leaf]) -> Iterator[Note]:
    yield from fsdp_faults(leaves)
    kind = leaves.get("distributed_type")
    word = str(kind.value).upper() if kind is not None else ""
    if word not in ("", "FSDP"):
        for leaf in leaves.values():
            if leaf.path[0] == "fsdp_config":
                yield wrong(leaf, f"`distributed_type: {word}` does not read `fsdp_config`")
                break
    if word not in ("", "DEEPSPEED"):
        for leaf in leaves.values():
            if leaf.path[0] == "deepspeed_config":
                yield wrong(leaf, f"`distributed_type: {word}` does not read `deepspeed_config`")
                break
    sizes = {row.key: leaves.get(f"parallelism_config.parallelism_config_{row.key}") for row in DEGREES}

    def size(name: str) -> int:
        leaf = sizes[name]
        return leaf.value if leaf is not None and isinstance(leaf.value, int) else 1

    replicate = sizes["dp_replicate_size"]
    if (
        replicate is not None
        and size("dp_replicate_size") > 1 == size("dp_shard_size")
        and size("tp_size") > 1
    ):
        yield wrong(
            replicate, "accelerate refuses replicas with tensor parallelism and no shards; planc runs them"
        )
    ring = sizes["cp_size"]
    if ring is not None and size("cp_size") > 1 and size("sp_size") > 1:
        yield wrong(ring, "accelerate refuses cp_size and sp_size above 1 at once")
    if ring is not None and size("cp_size") > 1:
        text = (
            "under accelerate, layers with a sliding window train with full causal attention; "
            "planc's checks refuse such a model with cp"
        )
        yield wrong(ring, text)


ACCELERATE = Kind(
    name="accelerate",
    title="accelerate",
    formats=("yaml", "json"),
    marks=(
        *("distributed_type", "num_processes", "num_machines", "machine_rank", "compute_environment"),
        *("parallelism_config.parallelism_config_", "main_training_function", "rdzv_backend"),
        *("deepspeed_config.zero_stage", "downcast_bf16", "same_network"),
    ),
    rows=_ROWS,
    defaults=((facts.ROTATE, "allgather"),),
    automatic=AUTOMATIC,
    is_part=True,
    faults=_faults,
)
