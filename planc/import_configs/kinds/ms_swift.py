"""ms-swift's YAML, JSON and commands: TrainingArguments with the tuner, the model and the data."""

from __future__ import annotations

from collections.abc import Mapping

from planc.import_configs import facts, part_readers, readers
from planc.import_configs.kind import Kind, Row
from planc.import_configs.kinds import reasons as why
from planc.import_configs.kinds import training_arguments
from planc.import_configs.leaves import Leaf, Value
from planc.import_configs.readers import Idle, Unread

_STAGES = {f"zero{stage}{end}": stage for stage in range(4) for end in ("", "_offload")}


def _stage(value: Value) -> int:
    """A stage of ZeRO by ms-swift's own name for its file."""
    word = readers.text(value)
    if word in _STAGES and not word.endswith("_offload"):
        return _STAGES[word]
    raise Unread("planc's `cpu_offload` is in `fsdp`" if word in _STAGES else why.OTHER_FILE)


def _losses(value: Value) -> str:
    """The plan's word for the messages that have a loss."""
    words = {"default": "answers", "all": "all", "last_round": "last_answer"}
    if value in words:
        return words[str(value)]
    raise Unread(f"a plan weighs no tokens: `train_on` is {', '.join(words.values())}")


def _share(value: Value) -> float:
    if value in (0, 0.0):
        raise Idle("0 freezes nothing")
    raise Unread("a plan freezes parameters by name: `freeze` has patterns")


def _rates(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """Rows of files without a rate: a tuner has one of its own."""
    tuner = leaves.get("tuner_type") or leaves.get("train_type")
    if tuner is None or tuner.value != "full":
        return ()
    return (Row(tuner.key, facts.ADAPTER, implies=((facts.LR, 1e-5),)),)


_OWN_ADAPTERS = (
    *("init_weights", "lorap_lr_ratio", "lora_ga_*", "adalora_*", "vera_*", "boft_*", "fourier_*", "reft_*"),
    *("llamapro_*", "adapter_act", "adapter_length", "target_regex", "target_parameters", "adapters"),
    *("resume_from_checkpoint_adapter", "use_galore", "lisa_*"),
)
_LOADER = (
    *("dataset_num_proc", "load_from_cache_file", "dataset_shuffle", "streaming", "shuffle_buffer_size"),
    *("lazy_tokenize", "packing_num_proc", "packing_strategy", "download_mode", "remove_unused_columns"),
    *("cached_dataset", "val_dataset_shuffle", "data_seed_val", "use_hf", "hub_token", "load_data_args"),
)
_OWN = (
    Row("model", facts.MODEL),
    Row("model_revision", facts.REVISION),
    Row("model_type", reason=why.OWN_MODEL),
    Row("task_type", change=why.LOSS, harmless=("causal_lm",)),
    Row("torch_dtype", facts.MODEL_DTYPE),
    Row("attn_impl", facts.ATTENTION),
    Row("rope_scaling", change=why.OWN_MODEL),
    Row("new_special_tokens", change=why.TOKENIZER),
    Row("tuner_type", facts.ADAPTER),
    Row("train_type", facts.ADAPTER),
    Row("tuner_backend", change=why.OWN_TRAINING, harmless=("peft",)),
    Row("lora_rank", facts.LORA_RANK),
    Row("lora_alpha", facts.LORA_ALPHA),
    Row("lora_dropout", facts.LORA_DROPOUT),
    Row("lora_bias", change=why.ADAPTERS, harmless=("none",)),
    Row("lora_dtype", reason=why.OF_ADAPTERS),
    Row("target_modules", facts.LORA_TARGETS),
    Row("modules_to_save", facts.TRAINED),
    Row("use_rslora", facts.RSLORA),
    Row("use_dora", facts.DORA),
    *(Row(key, change=why.ADAPTERS, harmless=(False, "true")) for key in _OWN_ADAPTERS),
    Row("quant_bits", facts.FOUR_BITS, read=part_readers.four_bits),
    Row("quant_method", change=why.QUANTIZED, harmless=("bnb",)),
    Row("bnb_4bit_quant_type", change=why.QUANTIZED, harmless=("nf4",)),
    *(Row(key, reason=why.SCALES) for key in ("bnb_4bit_*", "hqq_axis")),
    Row("freeze_parameters", facts.FROZEN),
    Row("trainable_parameters", facts.TRAINED),
    Row("freeze_parameters_ratio", facts.FROZEN, read=_share),
    Row("acc_strategy", change=why.LOSS, harmless=("token",)),
    *(Row(key, change=why.ARGUMENT) for key in ("optimizer", "aligner_lr", "vit_lr")),
    Row("loss_type", change=why.LOSS),
    Row("callbacks", change=why.REMOTE_CODE),
    Row("max_epochs", change="a plan has steps or epochs, not the lesser of both"),
    Row("freeze_llm", change=why.OWN_MODEL, harmless=(False,)),
    *(Row(f"freeze_{name}", reason=why.OWN_MODEL) for name in ("vit", "aligner")),
    Row("rlhf_type", change=why.NO_PREFERENCES),
    *(Row(key, reason=why.NO_PREFERENCES) for key in ("beta", "rpo_alpha", "ref_model", "label_smoothing")),
    Row("router_aux_loss_coef", change=why.BALANCE, harmless=(0, 0.0)),
    Row("enable_dft_loss", change=why.LOSS, harmless=(False,)),
    Row("dataset", facts.DATA),
    Row("val_dataset", reason=why.EVALUATION),
    Row("split_dataset_ratio", facts.EVAL_SHARE),
    Row("eval_steps", facts.EVAL_EVERY),
    Row("columns", change=why.OWN_DATA),
    Row("interleave_prob", change=why.OWN_DATA),
    Row("custom_dataset_info", reason=why.HUB_DATA),
    Row("custom_register_path", change=why.REMOTE_CODE),
    Row("external_plugins", change=why.REMOTE_CODE),
    *(Row(key, reason=why.OWN_DATA) for key in ("model_name", "model_author")),
    Row("template", change=why.TEMPLATE),
    Row("template_backend", reason=why.TEMPLATE, harmless=("jinja",)),
    Row("use_chat_template", facts.CHAT),
    Row("system", change=why.TEMPLATE),
    Row("enable_thinking", reason=why.TEMPLATE),
    Row("loss_scale", facts.TRAIN_ON, read=_losses),
    Row("max_length", facts.SEQUENCE_LENGTH),
    Row("truncation_strategy", reason=why.PACKS),
    Row("packing", facts.PACKING),
    Row("packing_length", facts.SEQUENCE_LENGTH),
    Row("padding_free", reason=why.PACKS),
    Row("sequence_parallel_size", facts.ULYSSES),
    Row("deepspeed", facts.ZERO_STAGE, read=_stage, names="deepspeed"),
    Row("deepspeed_autotp_size", facts.TP),
    *(Row(key, reason=why.LOADER) for key in _LOADER),
    *(Row(key, reason=why.LOGS) for key in ("add_version", "swanlab_*", "create_checkpoint_symlink")),
    *(Row(key, reason=why.INTERNAL) for key in ("load_args", "check_model", "device_map", "max_memory")),
    Row("vit_gradient_checkpointing", reason=why.OWN_MODEL),
)

MS_SWIFT = Kind(
    name="ms-swift",
    title="ms-swift",
    formats=("yaml", "json", "sh"),
    marks=(
        *(
            "model",
            "tuner_type",
            "train_type",
            "target_modules",
            "split_dataset_ratio",
            "torch_dtype",
            "dataset",
        ),
        *("attn_impl", "loss_scale", "truncation_strategy", "model_author", "rlhf_type", "lazy_tokenize"),
        *("freeze_parameters", "freeze_parameters_ratio", "quant_bits"),
    ),
    extends=training_arguments.TRAINING_ARGUMENTS.marks,
    rows=(*_OWN, *training_arguments.ARGUMENT_ROWS),
    own_rows=_rates,
    implied=((facts.SHARDED, False),),
    defaults=(
        *((facts.PRETRAINED, True), (facts.CHAT, True), (facts.ADAPTER, "lora"), (facts.TRAIN_ON, "answers")),
        *((facts.LORA_RANK, 8), (facts.LORA_ALPHA, 32.0), (facts.LORA_DROPOUT, 0.05), (facts.LR, 1e-4)),
        *((facts.LORA_TARGETS, part_readers.ALL_LINEAR), (facts.PACKING, False), (facts.RECOMPUTE, "full")),
        *((facts.MICRO_BATCH, 1), (facts.WEIGHT_DECAY, 0.1), (facts.BETA2, 0.95), (facts.SCHEDULE, "cosine")),
        *((facts.PARAM_DTYPE, "bfloat16"), (facts.LOG_EVERY, 5)),
        *training_arguments.ARGUMENT_DEFAULTS,
    ),
    spares_norms=True,
    least_batch=16,
    faults=training_arguments.argument_faults,
)
