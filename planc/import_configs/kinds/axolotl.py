"""Axolotl's YAML recipes: keys of its own, and most of TrainingArguments'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planc.import_configs import facts, part_readers, readers
from planc.import_configs.kind import Kind, Note, Row, wrong
from planc.import_configs.kinds import reasons as why
from planc.import_configs.kinds.training_arguments import ARGUMENT_ROWS, argument_faults, offloading_rows
from planc.import_configs.leaves import Leaf, Value, written
from planc.import_configs.readers import Idle, Unread


def _bf16(value: Value) -> str:
    """`auto` is bfloat16 wherever the device has it; `full` has no copy in float32."""
    if isinstance(value, str) and value.lower() in ("auto", "full"):
        return "bfloat16"
    return readers.bfloat16_if(value)


def _kernel(name: str) -> str:
    return f"planc's `attention` is sdpa, which runs flash kernels on CUDA, or eager; not {name}"


def _sdpa(value: Value) -> str:
    if readers.flag(value):
        return "sdpa"
    raise Idle("off")


def _eager(value: Value) -> str:
    if readers.flag(value):
        return "eager"
    raise Idle("off")


def _shards(value: Value) -> bool:
    """Any version shards; planc's is FSDP2."""
    return readers.count(value) > 0


def _recompute(value: Value) -> str:
    if value in ("offload", "unsloth"):
        return "offload"
    if value == "offload_disk":
        raise Unread('a plan moves activations to the host only: write `"model.layers.*" -> offload`')
    return readers.recompute(value)


def _is_chat(value: Value) -> bool:
    """Whether a data set has conversations: other formats than documents are templates of prompts."""
    word = readers.text(value)
    if word in ("chat_template", "completion", "pretrain"):
        return word == "chat_template"
    raise Unread(
        f"planc does not render prompts of type {written(value)}: a plan has documents or conversations"
    )


def _trained(value: Value) -> str:
    """The plan's word for a flag that adds the messages of the user."""
    return "all" if readers.flag(value) else "answers"


_OWN_TEMPLATES = ("tokenizer_default", "jinja")
"""`jinja` goes with a key that has the template."""
_WEIGHTS = ("weight", "train", "trainable", "loss", "loss_mask")
_SEVERAL = 'write each as `source "name" { source = chat("...") }` in `data`, or pass --data for one source'

_KERNEL_PLUGINS = ("liger.LigerPlugin", "cut_cross_entropy.CutCrossEntropyPlugin")
_IDLE_PLUGINS = tuple(
    tuple(f"axolotl.integrations.{name}" for name in names)
    for names in ((_KERNEL_PLUGINS[0],), (_KERNEL_PLUGINS[1],), _KERNEL_PLUGINS, _KERNEL_PLUGINS[::-1])
)


def _documents(table: str) -> Iterator[Row]:
    """Rows of the first data set: the others are for the author to write as sources."""
    yield Row(f"{table}.0.path", facts.DATA)
    yield Row(f"{table}.0.type", facts.CHAT, read=_is_chat)
    yield Row(f"{table}.0.field_messages", facts.MESSAGES)
    yield Row(f"{table}.0.field", facts.TEXT_FIELD)
    yield Row(f"{table}.0.text_column", facts.TEXT_FIELD)
    yield Row(f"{table}.0.roles_to_train", facts.ROLES)
    yield Row(f"{table}.0.train_on_eos", facts.TRAINS_ENDS)
    yield Row(f"{table}.0.train_on_eot", facts.TRAINS_ENDS)
    yield Row(f"{table}.0.chat_template", change=why.TEMPLATE, harmless=_OWN_TEMPLATES)
    yield Row(f"{table}.0.chat_template_jinja", facts.TEMPLATE)
    yield Row(f"{table}.0.drop_system_message", change=why.OWN_DATA, harmless=(False,))
    yield Row(f"{table}.0.field_tools", change=why.OWN_DATA, harmless=("tools",))
    yield Row(f"{table}.0.message_field_training", change=why.OWN_DATA, harmless=_WEIGHTS)
    for key, own in (("role", ("role", "from")), ("content", ("content", "value"))):
        yield Row(f"{table}.0.message_property_mappings.{key}", change=why.OWN_DATA, harmless=own)
        yield Row(f"{table}.0.message_field_{key}", change=why.OWN_DATA, harmless=own)
    yield Row(f"{table}.0.split", facts.SPLIT)
    for key in ("split", "name", "data_files", "data_files.**", "shards", "revision", "ds_type", "skip"):
        yield Row(f"{table}.*.{key}", reason=why.HUB_DATA)
    yield Row(f"{table}.*.trust_remote_code", reason=why.REMOTE_CODE, harmless=(False,))
    yield Row(f"{table}.*.preprocess_shards", reason=why.LOADER)
    yield Row(f"{table}.*.path", change=_SEVERAL)
    yield Row(f"{table}.**", change=why.OWN_DATA)


_ADAPTERS = (
    Row("adapter", facts.ADAPTER),
    Row("lora_r", facts.LORA_RANK),
    Row("lora_alpha", facts.LORA_ALPHA),
    Row("lora_dropout", facts.LORA_DROPOUT),
    Row("lora_target_modules", facts.LORA_TARGETS),
    Row("lora_target_linear", facts.LORA_TARGETS, read=part_readers.every_linear),
    Row("lora_modules_to_save", facts.TRAINED),
    Row("peft_use_rslora", facts.RSLORA),
    Row("peft_use_dora", facts.DORA),
    Row("lora_model_dir", facts.LORA_START),
    Row("lora_on_cpu", reason=why.OF_ADAPTERS),
    Row("lora_fan_in_fan_out", reason=why.OF_ADAPTERS, harmless=(False,)),
    *(Row(f"lora_{name}_kernel", reason=why.OF_ADAPTERS) for name in ("mlp", "qkv", "o", "embedding")),
    Row("load_in_4bit", facts.FOUR_BITS),
    *(Row(key, change=why.QUANTIZED, harmless=(False,)) for key in ("load_in_8bit", "gptq")),
    Row("qlora_sharded_model_loading", reason=why.OF_ADAPTERS),
    Row("bnb_config_kwargs.bnb_4bit_quant_type", change=why.QUANTIZED, harmless=("nf4",)),
    Row("bnb_config_kwargs.**", reason=why.SCALES),
    Row("peft_init_lora_weights", change=why.ADAPTERS, harmless=(True,)),
    *(
        Row(key, change=why.ADAPTERS, harmless=(False,))
        for key in ("relora", "relora_*", "lora_*", "peft_*", "peft.**", "loraplus_*")
    ),
)
_OWN_LOSS = (
    *("rl", "dpo_*", "kto_*", "orpo_*", "simpo_*", "cpo_*", "rl_beta", "trl.**", "ebft.**", "use_eaft"),
    *(
        "process_reward_model",
        "noisy_embedding_alpha",
        "curriculum_sampling",
        "use_pose",
        "embedding_lr_scale",
    ),
)
_OF_PREFERENCES = (
    Row("rl", facts.PAIRS, implies=((facts.DPO_BETA, 0.1),)),
    Row("rl_beta", facts.DPO_BETA),
    Row("dpo_label_smoothing", facts.DPO_SMOOTHING),
    *(Row(f"dpo_{key}", reason=why.INTERNAL) for key in ("use_logits_to_keep", "padding_free")),
    Row("datasets.0.type", change=why.OWN_DATA, harmless=("chat_template.default",)),
    *(Row(f"datasets.0.field_{key}", change=why.OWN_DATA, harmless=(key,)) for key in ("chosen", "rejected")),
    Row("datasets.0.field_messages", change=why.OWN_DATA, harmless=("prompt",)),
)
"""Rows of a file with `rl: dpo`."""
_OWN = (
    Row("base_model", facts.MODEL),
    Row("revision_of_model", facts.REVISION),
    Row("base_model_config", reason=why.OWN_MODEL),
    Row("model_type", reason=why.OWN_MODEL),
    Row("overrides_of_model_config.**", change=why.OWN_MODEL),
    Row("tokenizer_type", reason=why.TOKENIZER),
    Row("tokenizer_config", reason=why.TOKENIZER),
    Row("tokenizer_use_fast", reason=why.TOKENIZER),
    Row("special_tokens.pad_token", reason=why.PACKS),
    Row("special_tokens.**", change=why.TOKENIZER),
    Row("tokens", change=why.TOKENIZER),
    Row("added_tokens_overrides.**", change=why.TOKENIZER),
    Row("trust_remote_code", reason=why.REMOTE_CODE, harmless=(False,)),
    Row("is_llama_derived_model", reason=why.OWN_MODEL),
    *_documents("datasets"),
    *_documents("pretraining_dataset"),
    Row("test_datasets.**", reason=why.EVALUATION),
    Row(
        "dataset_prepared_path",
        reason="`planc data prepare` tokenizes once; a run takes it from its directory",
    ),
    Row("shuffle_merged_datasets", reason="the sample order is always shuffled, by `shuffle_seed`"),
    Row("dataset_processes", reason=why.LOADER),
    Row("dataset_exact_deduplication", reason=why.LOADER),
    Row("val_set_size", facts.EVAL_SHARE),
    Row("eval_steps", facts.EVAL_EVERY),
    Row("eval_table_size", reason=why.EVALUATION),
    Row("eval_max_new_tokens", reason=why.EVALUATION),
    Row("evals_per_epoch", reason=why.EVALUATION),
    Row("eval_sample_packing", reason=why.EVALUATION),
    Row("eval_batch_size", reason=why.EVALUATION),
    Row("saves_per_epoch", reason="a plan saves by steps: `save_every = 500 steps` in `checkpoint`"),
    Row("chat_template", change=why.TEMPLATE, harmless=_OWN_TEMPLATES),
    Row("chat_template_jinja", facts.TEMPLATE),
    Row("default_system_message", change=why.TEMPLATE),
    Row("train_on_inputs", facts.TRAIN_ON, read=_trained),
    Row("sequence_len", facts.SEQUENCE_LENGTH),
    Row("sample_packing", facts.PACKING),
    Row("pad_to_sequence_len", reason=why.PACKS),
    Row("excess_length_strategy", reason=why.PACKS),
    Row("sample_packing_*", reason=why.PACKS),
    Row("group_by_length", reason=why.LOADER, harmless=(False,)),
    Row("micro_batch_size", facts.MICRO_BATCH),
    Row("batch_size", facts.GLOBAL_BATCH),
    Row("num_epochs", facts.EPOCHS),
    Row("optimizer", facts.OPTIMIZER),
    Row("lr_scheduler", facts.SCHEDULE),
    Row("cosine_min_lr_ratio", facts.MIN_FACTOR),
    Row("cosine_constant_lr_ratio", change=why.SCHEDULE_ARGUMENT),
    Row("lr_quadratic_warmup", change=why.SCHEDULE_ARGUMENT, harmless=(False,)),
    Row("embedding_lr", change=why.GROUPS),
    Row("lr_groups.**", change=why.GROUPS),
    Row("bf16", facts.PARAM_DTYPE, read=_bf16),
    Row("bfloat16", facts.PARAM_DTYPE, read=readers.bfloat16_if),
    Row("float16", change=why.HALF, harmless=(False,)),
    Row("float32", reason=why.INTERNAL),
    Row("fp8", change=why.FLOAT8, harmless=(False,)),
    Row("fp8_enable_fsdp_float8_all_gather", reason=why.FLOAT8, harmless=(False,)),
    Row("qat.**", change=why.FLOAT8),
    Row("quantization.**", reason=why.FLOAT8),
    Row("gradient_checkpointing", facts.RECOMPUTE, read=_recompute),
    Row("activation_offloading", reason=why.OFFLOADS, harmless=(False,)),
    Row("flash_attention", reason=_kernel("flash_attention"), harmless=(False,)),
    Row("xformers_attention", reason=_kernel("xformers"), harmless=(False,)),
    Row("flex_attention", reason=_kernel("flex attention"), harmless=(False,)),
    Row("sdp_attention", facts.ATTENTION, read=_sdpa),
    Row("eager_attention", facts.ATTENTION, read=_eager),
    Row("attn_implementation", facts.ATTENTION),
    Row("attention", facts.ATTENTION),
    Row("s2_attention", reason=_kernel("shifted sparse attention"), harmless=(False,)),
    Row("tensor_parallel_size", facts.TP),
    Row("context_parallel_size", facts.CP),
    Row("sequence_parallel_degree", facts.CP),
    Row("dp_shard_size", facts.DP_SHARD),
    Row("dp_replicate_size", facts.DP_REPLICATE),
    Row("expert_parallel_size", reason=why.EXPERTS, harmless=(1,)),
    Row("heads_k_stride", reason=why.CP_BACKEND),
    Row("ring_attn_func", reason=why.CP_BACKEND),
    Row("fsdp", facts.STRATEGY),
    Row("fsdp_version", facts.SHARDED, read=_shards),
    Row("deepspeed", change=why.OTHER_FILE, names="deepspeed"),
    Row("wandb_project", facts.WANDB),
    Row("wandb_*", reason=why.WANDB),
    Row("mlflow_*", reason=why.LOGS),
    Row("comet_*", reason=why.LOGS),
    Row("use_tensorboard", facts.TENSORBOARD),
    Row(
        "plugins",
        change="plugins change the model's code; planc runs transformers' own",
        harmless=_IDLE_PLUGINS,
    ),
    Row("liger_fused_linear_cross_entropy", facts.LOSS_CHUNKS),
    Row(
        "liger_*", reason="planc runs transformers' own modules, with torch.compile if the plan has `compile`"
    ),
    Row("cut_cross_entropy", facts.LOSS_CHUNKS),
    Row("chunked_cross_entropy", facts.LOSS_CHUNKS),
    Row(
        "unfrozen_parameters",
        change='`freeze { "**" -> frozen, override "pattern" -> trained }` freezes the others',
    ),
    Row("reward_model", change=why.LOSS, harmless=(False,)),
    *(Row(key, change=why.LOSS, harmless=(False,)) for key in _OWN_LOSS),
    Row("early_stopping_patience", reason="`patience` of an `eval` block ends a run early"),
    Row("strict", reason=why.INTERNAL),
    Row("save_first_step", reason="`save_every` decides which steps are saved"),
    Row("auto_resume_from_checkpoints", reason=why.LOADING),
    Row("use_ray", reason=why.LAUNCH),
    Row("ray_num_workers", reason=why.LAUNCH),
    *_ADAPTERS,
)


def _faults(leaves: Mapping[str, Leaf]) -> Iterator[Note]:
    yield from argument_faults(leaves)
    sharded, zero = leaves.get("fsdp_config"), leaves.get("deepspeed")
    has_fsdp = any(leaf.path[0] == "fsdp_config" and leaf.value is not None for leaf in leaves.values())
    if zero is not None and zero.value and has_fsdp and sharded is None:
        yield wrong(zero, "FSDP and DeepSpeed can't both shard the model")
    packing, padded = leaves.get("sample_packing"), leaves.get("pad_to_sequence_len")
    if packing is not None and packing.value is True and _is_eager(leaves):
        text = "eager attention does not keep packed documents apart; the plan has `packing = whole`"
        yield wrong(packing, text)
    if packing is not None and packing.value is True and padded is not None and padded.value is False:
        yield wrong(padded, "packed batches of unequal length compile and allocate again at every step")
    eight = leaves.get("load_in_8bit")
    if eight is not None and eight.value is True and not _adapts(leaves):
        yield wrong(eight, "weights in 8 bits can't be trained without an adapter")


def _own_rows(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """Rows whose meaning depends on other keys."""
    method = leaves.get("rl")
    prefers = method is not None and method.value == "dpo"
    return (*(_OF_PREFERENCES if prefers else ()), *offloading_rows(leaves, recomputes=False))


def _is_eager(leaves: Mapping[str, Leaf]) -> bool:
    """Whether attention is the model's own code, which takes a mask and no lengths."""
    flag = leaves.get("eager_attention")
    if flag is not None and flag.value is True:
        return True
    return any(leaves[key].value == "eager" for key in ("attn_implementation", "attention") if key in leaves)


def _adapts(leaves: Mapping[str, Leaf]) -> bool:
    adapter = leaves.get("adapter")
    return adapter is not None and adapter.value is not None


AXOLOTL = Kind(
    name="axolotl",
    title="Axolotl",
    formats=("yaml",),
    marks=(
        *("base_model", "datasets.", "sequence_len", "micro_batch_size", "sample_packing", "num_epochs"),
        *(
            "dataset_prepared_path",
            "val_set_size",
            "pad_to_sequence_len",
            "saves_per_epoch",
            "evals_per_epoch",
        ),
        *("lora_target_linear", "pretraining_dataset.", "special_tokens.", "flash_attention", "wandb_watch"),
    ),
    rows=(*_OWN, *ARGUMENT_ROWS),
    implied=((facts.SHARDED, False), (facts.PRETRAINED, True)),
    defaults=(
        *((facts.CLIP, 1.0), (facts.SCHEDULE, "cosine"), (facts.WEIGHT_DECAY, 0.0), (facts.SEED, 42)),
        *((facts.PACKING, False), (facts.EPOCHS, 1.0)),
    ),
    warmup=(0.03, 100),
    spares_norms=True,
    adapts_by_peft=True,
    own_rows=_own_rows,
    faults=_faults,
)
