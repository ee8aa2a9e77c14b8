"""TRL's recipes of supervised fine-tuning, as YAML: TrainingArguments with the model and the data."""

from __future__ import annotations

from functools import partial

from planc.import_configs import facts, readers
from planc.import_configs.kind import Kind, Row
from planc.import_configs.kinds import reasons as why
from planc.import_configs.kinds import training_arguments
from planc.import_configs.leaves import Value


def _adapts(value: Value) -> str | None:
    return "lora" if readers.flag(value) else None


_ADAPTERS = (
    Row("use_peft", facts.ADAPTER, read=_adapts),
    Row("lora_r", facts.LORA_RANK),
    Row("lora_alpha", facts.LORA_ALPHA),
    Row("lora_dropout", facts.LORA_DROPOUT),
    Row("lora_target_modules", facts.LORA_TARGETS),
    Row("lora_modules_to_save", facts.TRAINED),
    Row("use_rslora", facts.RSLORA),
    Row("use_dora", facts.DORA),
    Row("lora_task_type", reason=why.OF_ADAPTERS, harmless=("CAUSAL_LM",)),
    Row("lora_*", change=why.ADAPTERS),
    Row("load_in_4bit", facts.FOUR_BITS),
    Row("load_in_8bit", change=why.QUANTIZED, harmless=(False,)),
    Row("bnb_4bit_quant_type", change=why.QUANTIZED, harmless=("nf4",)),
    *(Row(key, reason=why.SCALES) for key in ("bnb_4bit_quant_*", "use_bnb_nested_quant")),
)
_OWN = (
    Row("model_name_or_path", facts.MODEL),
    Row("model_revision", facts.REVISION),
    Row("torch_dtype", facts.MODEL_DTYPE),
    Row("dtype", facts.MODEL_DTYPE),
    Row("attn_implementation", facts.ATTENTION),
    Row("trust_remote_code", reason=why.REMOTE_CODE, harmless=(False,)),
    Row("max_length", facts.SEQUENCE_LENGTH),
    Row("max_seq_length", facts.SEQUENCE_LENGTH),
    Row("packing", facts.PACKING),
    Row("packing_strategy", reason=why.PACKS),
    Row("padding_free", reason=why.PACKS),
    Row("pad_to_multiple_of", reason=why.PACKS),
    Row("truncation_mode", change=why.PACKS, harmless=("keep_start",)),
    Row("chat_template", change=why.TEMPLATE),
    Row("chat_template_path", facts.TEMPLATE),
    Row("eos_token", change=why.TEMPLATE),
    Row("pad_token", reason=why.PACKS),
    Row("assistant_only_loss", facts.TRAIN_ON, implies=((facts.CHAT, True),)),
    Row("completion_only_loss", facts.CHAT, harmless=(False,)),
    Row("dataset_text_field", facts.TEXT_FIELD),
    Row("dataset_name", facts.DATA),
    Row("dataset_config", reason=why.HUB_DATA, opens=facts.DATA),
    Row("dataset_train_split", facts.SPLIT),
    Row("dataset_test_split", reason=why.EVALUATION),
    Row("dataset_streaming", reason=why.LOADER),
    Row("datasets.**", reason=why.HUB_DATA, opens=facts.DATA),
    Row("dataset_mixer.**", reason=why.HUB_DATA, opens=facts.DATA),
    Row("dataset_mixture.**", reason=why.HUB_DATA, opens=facts.DATA),
    Row("dataset_splits", reason=why.HUB_DATA),
    Row("dataset_num_proc", reason=why.LOADER),
    Row("dataset_kwargs.**", change=why.OWN_DATA),
    Row("shuffle_dataset", reason="the sample order is always shuffled, by `shuffle_seed`"),
    Row("preprocessing_num_workers", reason=why.LOADER),
    Row("loss_type", change=why.LOSS, harmless=("nll", "chunked_nll")),
    Row("router_aux_loss_coef", change=why.BALANCE, harmless=(0, 0.0)),
    Row("activation_offloading", reason=why.OFFLOADS, harmless=(False,)),
    Row("model_init_kwargs.**", change=why.OWN_MODEL),
    *_ADAPTERS,
)

TRL = Kind(
    name="trl",
    title="TRL",
    formats=("yaml", "json"),
    marks=(
        *("model_name_or_path", "dataset_name", "max_length", "max_seq_length", "packing", "use_peft"),
        *("dataset_text_field", "assistant_only_loss", "completion_only_loss", "dataset_mixer."),
        "model_revision",
    ),
    extends=training_arguments.TRAINING_ARGUMENTS.marks,
    rows=(*_OWN, *training_arguments.ARGUMENT_ROWS),
    implied=((facts.SHARDED, False), (facts.PRETRAINED, True)),
    defaults=(
        *((facts.LR, 2e-5), (facts.PARAM_DTYPE, "bfloat16"), (facts.RECOMPUTE, "full")),
        *((facts.SEQUENCE_LENGTH, 1024), (facts.PACKING, False)),
        *((facts.LORA_RANK, 16), (facts.LORA_ALPHA, 32.0), (facts.LORA_DROPOUT, 0.05)),
        *training_arguments.ARGUMENT_DEFAULTS,
    ),
    spares_norms=True,
    adapts_by_peft=True,
    tells_chats_by_columns=True,
    own_rows=partial(training_arguments.offloading_rows, recomputes=True),
    faults=training_arguments.argument_faults,
)
