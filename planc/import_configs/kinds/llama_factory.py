"""LLaMA-Factory's YAML recipes: TrainingArguments with the method, the model and the data."""

from __future__ import annotations

from collections.abc import Mapping

from planc.import_configs import facts, part_readers, readers
from planc.import_configs.kind import Kind, Row
from planc.import_configs.kinds import reasons as why
from planc.import_configs.kinds import training_arguments
from planc.import_configs.leaves import Leaf, Value
from planc.import_configs.readers import Idle, Unread


def _is_chat(value: Value) -> bool:
    """Whether a stage trains on conversations."""
    word = readers.text(value).lower()
    if word in ("sft", "pt"):
        return word == "sft"
    raise Unread(why.NO_PREFERENCES)


def _adapts(value: Value) -> str | None:
    return None if value == "freeze" else part_readers.adapter(value)


def _trained(value: Value) -> str:
    return "all" if readers.flag(value) else "answers"


def _answers(value: Value) -> str:
    if readers.flag(value):
        return "last_answer"
    raise Idle("off: all answers are trained on")


def _recomputes(value: Value) -> str:
    return "none" if readers.flag(value) else "full"


def _data(value: Value) -> str:
    raise Unread("names of dataset_info.json: pass --data with the files")


def _kernel(value: Value) -> str:
    if value in ("sdpa", "auto", "disabled"):
        return {"disabled": "eager"}.get(str(value), "sdpa")
    return readers.attention(value)


def _own_rows(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """Rows whose meaning depends on other keys."""
    prefers = _value(leaves, "stage") == "dpo"
    return (
        *(_OF_PREFERENCES if prefers else _of_stage(leaves)),
        *(*_of_packing(leaves), *_of_rank(leaves), *_of_freezing(leaves)),
    )


def _of_stage(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """Documents are cut into sequences, as a plan does by itself; conversations are not."""
    if _value(leaves, "stage") != "pt":
        return ()
    return (Row("stage", facts.CHAT, read=_is_chat, opens=facts.PACKING),)


_OF_PREFERENCES = (
    Row("stage", facts.PAIRS, implies=((facts.DPO_BETA, 0.1),)),
    Row("pref_beta", facts.DPO_BETA),
    Row("pref_loss", change=why.PREFERENCE_LOSS, harmless=("sigmoid",)),
    *(Row(key, change=why.PREFERENCE_LOSS, harmless=(0, 0.0)) for key in ("pref_ftx", "pref_bco_weight")),
    Row("dpo_label_smoothing", facts.DPO_SMOOTHING),
    Row("ref_model*", change=why.REFERENCE),
)
"""Rows of a file with `stage: dpo`."""


def _of_packing(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    if _value(leaves, "packing") is not True or _value(leaves, "neat_packing") is True:
        return ()
    return (
        Row(
            "packing", change="conversations of a plan that share a sequence are apart, as by `neat_packing`"
        ),
    )


def _of_rank(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """Alpha is twice the rank where a file has none."""
    rank = _value(leaves, "lora_rank")
    if "lora_alpha" in leaves or not isinstance(rank, int):
        return ()
    return (Row("lora_rank", facts.LORA_RANK, implies=((facts.LORA_ALPHA, float(2 * rank)),)),)


def _of_freezing(leaves: Mapping[str, Leaf]) -> tuple[Row, ...]:
    """All but some layers are frozen, two at the end by default."""
    if _value(leaves, "finetuning_type") != "freeze":
        return ()
    return (
        Row("finetuning_type", facts.ADAPTER, read=_adapts, implies=((facts.LAST_LAYERS, 2),)),
        Row("freeze_trainable_layers", facts.LAST_LAYERS),
    )


def _value(leaves: Mapping[str, Leaf], key: str) -> Value:
    return leaves[key].value if key in leaves else None


_OWN_OPTIMIZER = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon")
_OWN_MODEL = (
    *("rope_scaling", "shift_attn", "mixture_of_depths", "resize_vocab", "add_tokens", "add_special_tokens"),
    *("new_special_tokens_config", "upcast_layernorm", "upcast_lmhead_output", "use_llama_pro"),
)
_OWN_LOSS = ("use_dft_loss", "use_asft_loss", "use_eaft_loss")
_OWN_ADAPTERS = (
    *("loraplus_lr_ratio", "pissa_init", "create_new_adapter", "adapter_name_or_path", "module_dropout"),
    *("oft_rank", "oft_target", "oft_block_size"),
)
_OWN = (
    Row("model_name_or_path", facts.MODEL),
    Row("model_revision", facts.REVISION),
    Row("trust_remote_code", reason=why.REMOTE_CODE, harmless=(False,)),
    Row("train_from_scratch", facts.PRETRAINED, read=lambda value: not readers.flag(value)),
    Row("flash_attn", facts.ATTENTION, read=_kernel),
    Row("stage", facts.CHAT, read=_is_chat),
    Row("finetuning_type", facts.ADAPTER, read=_adapts),
    Row("lora_rank", facts.LORA_RANK),
    Row("lora_alpha", facts.LORA_ALPHA),
    Row("lora_dropout", facts.LORA_DROPOUT),
    Row("lora_target", facts.LORA_TARGETS),
    Row("use_rslora", facts.RSLORA),
    Row("use_dora", facts.DORA),
    Row("additional_target", facts.TRAINED),
    *(Row(key, change=why.ADAPTERS, harmless=(False,)) for key in _OWN_ADAPTERS),
    Row("quantization_bit", facts.FOUR_BITS, read=part_readers.four_bits),
    Row("quantization_type", change=why.QUANTIZED, harmless=("nf4",)),
    Row("quantization_method", change=why.QUANTIZED, harmless=("bnb", "bitsandbytes")),
    *(Row(key, reason=why.SCALES) for key in ("quantization_*", "double_quantization")),
    Row("freeze_trainable_layers", reason="without `finetuning_type: freeze` it does nothing"),
    Row("freeze_trainable_modules", change="a plan trains layers whole", harmless=("all",)),
    Row("freeze_extra_modules", facts.TRAINED),
    *(Row(f"freeze_{name}", reason=why.OWN_MODEL) for name in ("vision_tower", "multi_modal_projector")),
    Row("freeze_language_model", change=why.OWN_MODEL, harmless=(False,)),
    Row("pure_bf16", facts.MODEL_DTYPE, read=readers.bfloat16_if),
    *(Row(key, change=why.ARGUMENT, harmless=(False,)) for key in _OWN_OPTIMIZER),
    *(Row(key, change=why.OWN_MODEL, harmless=(False,)) for key in _OWN_MODEL),
    *(Row(key, change=why.LOSS, harmless=(False,)) for key in _OWN_LOSS),
    Row("pref_*", reason=why.NO_PREFERENCES),
    Row("ref_model*", reason=why.NO_PREFERENCES),
    Row("reward_model*", reason=why.NO_PREFERENCES),
    *(Row(f"{name}_*", reason=why.NO_PREFERENCES) for name in ("dpo", "kto", "ppo", "simpo")),
    Row("moe_aux_loss_coef", change=why.BALANCE, harmless=(0, 0.0)),
    Row("dataset", facts.DATA, read=_data),
    Row("dataset_dir", reason="the file names data sets of its dataset_info.json"),
    Row("media_dir", reason=why.OWN_MODEL),
    Row("eval_dataset", reason=why.EVALUATION),
    Row("template", change=why.TEMPLATE),
    Row("default_system", change=why.TEMPLATE),
    Row("enable_thinking", reason=why.TEMPLATE),
    Row("tool_format", change=why.TEMPLATE),
    Row("cutoff_len", facts.SEQUENCE_LENGTH),
    Row("train_on_prompt", facts.TRAIN_ON, read=_trained),
    Row("mask_history", facts.TRAIN_ON, read=_answers),
    Row("packing", facts.PACKING),
    Row("neat_packing", facts.PACKING),
    Row("max_samples", change="a plan trains on all rows of its files"),
    Row("mix_strategy", change=why.OWN_DATA, harmless=("concat",)),
    Row("interleave_probs", change=why.OWN_DATA),
    Row("val_size", facts.EVAL_SHARE),
    Row("eval_steps", facts.EVAL_EVERY),
    Row("disable_shuffling", change="the sample order is always shuffled", harmless=(False,)),
    Row("disable_gradient_checkpointing", facts.RECOMPUTE, read=_recomputes),
    Row("enable_liger_kernel", facts.LOSS_CHUNKS),
    *(Row(key, reason=why.INTERNAL) for key in ("use_reentrant_gc", "use_unsloth", "use_unsloth_gc")),
    *(
        Row(key, reason=why.LOADER)
        for key in (
            *("preprocessing_num_workers", "preprocessing_batch_size", "overwrite_cache", "streaming"),
            *("tokenized_path", "buffer_size", "data_shared_file_system", "low_cpu_mem_usage"),
        )
    ),
    *(Row(key, reason=why.LOGS) for key in ("plot_loss", "use_swanlab", "swanlab_*", "compute_accuracy")),
    *(Row(key, reason=why.INTERNAL) for key in ("use_fast_tokenizer", "cache_dir", "print_param_status")),
    *(Row(f"{name}_*", reason=why.OWN_MODEL) for name in ("image", "video", "audio", "vllm", "infer")),
    *(Row(f"ray_{name}", reason=why.LAUNCH) for name in ("run_name", "storage_path", "num_workers")),
    Row("resources_per_worker.**", reason=why.LAUNCH),
)


LLAMA_FACTORY = Kind(
    name="llama-factory",
    title="LLaMA-Factory",
    formats=("yaml", "json", "sh"),
    marks=(
        *("stage", "finetuning_type", "cutoff_len", "template", "lora_target", "dataset_dir", "pure_bf16"),
        *("preprocessing_num_workers", "plot_loss", "neat_packing", "quantization_bit", "overwrite_cache"),
    ),
    extends=training_arguments.TRAINING_ARGUMENTS.marks,
    rows=(*_OWN, *training_arguments.ARGUMENT_ROWS),
    own_rows=_own_rows,
    implied=((facts.SHARDED, False),),
    defaults=(
        *((facts.PRETRAINED, True), (facts.CHAT, True), (facts.ADAPTER, "lora"), (facts.TRAIN_ON, "answers")),
        *((facts.LORA_RANK, 8), (facts.LORA_ALPHA, 16.0), (facts.LORA_TARGETS, part_readers.ALL_LINEAR)),
        *((facts.SEQUENCE_LENGTH, 2048), (facts.PACKING, False), (facts.LR, 5e-5), (facts.RECOMPUTE, "full")),
        *training_arguments.ARGUMENT_DEFAULTS,
    ),
    spares_norms=True,
    faults=training_arguments.argument_faults,
)
