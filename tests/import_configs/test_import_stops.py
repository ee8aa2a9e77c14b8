"""An import never trains something else without a word: what no plan trains stops it, and `off` stays off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer

from planc.api import check_source
from planc.cli.main import main
from planc.hub.user_dirs import cache_dir
from planc.import_configs import facts
from planc.import_configs.detect import BY_NAME
from planc.import_configs.draft import Part, draft_of
from planc.import_configs.importing import READERS
from planc.import_configs.kind import NoteKind
from planc.import_configs.leaves import Leaf
from planc.import_configs.optimizer_text import spared_patterns
from planc.inventory.adapters import adapted_layers
from planc.inventory.known import KnownModels
from planc.plan.pattern import parse_own
from planc.source import NOWHERE, SourceFile
from tests.import_configs.test_import_configs import (
    CONFIGS,
    FILES,
    MODEL,
    OPTIONS,
    ROOT,
    as_plan,
    imported,
    plan_of,
)

Streams = pytest.CaptureFixture[str]

USUAL = {"axolotl": {"datasets.0.type"}, "automodel": {"dataset._target_"}}
"""What stops most files of a kind: the templates of prompts that they train on."""
STOPS: dict[str, set[str]] = {
    "accelerate/short.yaml": {"mixed_precision"},
    "accelerate/zero2_in_half.yaml": {"mixed_precision"},
    "automodel/adam_with_decay.yaml": {"optimizer._target_"},
    "automodel/float8.yaml": {"fp8.enabled"},
    "automodel/local_data.yaml": {
        "dataset.answer_only_loss_mask",
        "dataset.column_mapping.answer",
        "dataset.column_mapping.question",
    },
    "axolotl/chats.yaml": {"chat_template"},
    "axolotl/eight_bits.yaml": {"load_in_8bit"},
    "axolotl/pretrains.yaml": {"qat.activation_dtype", "qat.group_size", "qat.weight_dtype"},
    "axolotl/two_datasets.yaml": {"datasets.1.path", "datasets.1.type"},
    "axolotl/zero.yaml": {"deepspeed"},
    "axolotl/zero_and_fsdp.yaml": {"deepspeed"},
    "deepspeed/both_halves.json": {"fp16.enabled"},
    "deepspeed/fp16_only.json": {"fp16.enabled"},
    "deepspeed/one_bit.json": {
        "communication_data_type",
        "optimizer.params.cuda_aware",
        "optimizer.params.freeze_step",
        "optimizer.type",
    },
    "deepspeed/warms_logarithmically.json": {
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_type",
    },
    "deepspeed/another_rate.json": {"scheduler.params.warmup_type"},
    "deepspeed/auto_everything.json": {"scheduler.params.warmup_type"},
    "deepspeed/cosine.json": {"scheduler.params.warmup_type"},
    "deepspeed/numbers_zero2_decay.json": {"scheduler.params.warmup_type"},
    "megatron/half.sh": {"fp16"},
    "torchtitan/float8.toml": {"model.converters"},
    "torchtitan/root_decay.toml": {"lr_scheduler.decay_type"},
    "torchtitan/saved.toml": {"checkpoint.initial_load_path"},
    "training-arguments/adafactor.json": {"optim"},
    "training-arguments/by_rank_means.json": {"neftune_noise_alpha"},
    "training-arguments/stable_decay.json": {"lr_scheduler_kwargs.min_lr_ratio"},
    "training-arguments/two_halves.json": {"fp16"},
    "training-arguments/zero_elsewhere.json": {"deepspeed"},
    "torchtitan/current_groups.json": {
        f"optimizer.param_groups.{group}.{key}"
        for group, keys in enumerate((("lr", "weight_decay"), ("betas", "eps", "lr", "weight_decay")))
        for key in ("optimizer_name", "pattern", *(f"optimizer_kwargs.{key}" for key in keys))
    },
}
"""What stops the others, by file."""


def _stops(path: Path) -> set[str]:
    kind = path.parent.name
    gpus = {} if kind == "accelerate" else {facts.WORLD_SIZE: 8}
    options = {facts.MODEL: MODEL, **gpus, facts.DATA: "data/*.txt", **OPTIONS[kind]}
    return {note.key for note in as_plan(path, options).refused}


def test_what_no_plan_trains_stops_the_import_and_nothing_else_does() -> None:
    found = {f"{path.parent.name}/{path.name}": _stops(path) for path in FILES}
    beyond = {name: keys - USUAL.get(name.partition("/")[0], set()) for name, keys in found.items()}
    assert {name: keys for name, keys in beyond.items() if keys} == STOPS
    for kind, usual in USUAL.items():
        assert sum(usual <= keys for name, keys in found.items() if name.startswith(kind)) > 5


BOOKKEEPING = (
    *("checkpoint", "comm", "debug", "job", "metrics", "profiler", "profiling", "validation", "validator"),
    *("tokenizer", "model_spec", "dataloader", "float8", "mx", "quantize", "fault_tolerance", "experimental"),
    *("memory_estimation", "model_converters", "compile", "wandb", "logger", "mlflow", "dist_env", "rng"),
    *("tensorboard", "flops_profiler", "comms_logger", "csv_monitor", "aio", "autotuning", "elasticity"),
)
"""Tables that decide nothing about the training, or that are known by one switch."""


def _tables(leaves: tuple[Leaf, ...]) -> Iterator[tuple[str, ...]]:
    """Every table of a file that its training is in, and the file itself."""
    paths = {leaf.path[:length] for leaf in leaves for length in range(len(leaf.path))}
    yield from sorted(path for path in paths if not path or path[0] not in BOOKKEEPING)


TRAINING = ("training", "optimizer", "lr_scheduler", "parallelism", "scheduler", "zero_optimization")
"""Tables of training, optimizer and parallelism in files that have tables."""
TRAINING += ("distributed", "step_scheduler", "parallelism_config", "fsdp_config", "deepspeed_config")


def test_an_unknown_key_of_training_optimizer_or_parallelism_stops_the_import() -> None:
    num_tables = 0
    for path in FILES:
        leaves = READERS[path.suffix](path.read_text(encoding="utf-8"))
        for table in _tables(leaves):
            if table and table[0] not in TRAINING:
                continue
            if any(leaf.path == table for leaf in leaves):
                continue
            unknown = Leaf((*table, "an_unknown_key"), 3, 1)
            draft = draft_of([Part(path.name, BY_NAME[path.parent.name], (*leaves, unknown))], {})
            kinds = {note.kind for note in draft.notes if note.key == unknown.key}
            assert kinds == {NoteKind.CHANGED}, (path.name, unknown.key)
            num_tables += 1
    assert num_tables > 300


def written(tmp_path: Path, text: str, *options: str, suffix: str = ".json") -> tuple[int, Path]:
    config, plan = tmp_path / f"config{suffix}", tmp_path / "x.plan"
    config.write_text(text, encoding="utf-8")
    model = str(ROOT / MODEL)
    code = main(["import", str(config), "--model", model, "--gpus", "2", *options, "-o", str(plan)])
    return code, plan


LORA = "base_model: org/base\nsequence_len: 256\nmicro_batch_size: 1\nmax_steps: 5\nlearning_rate: 2.0e-4\n"
LORA += "adapter: lora\nlora_r: 8\nlora_alpha: 24\nlora_target_modules: [q_proj, down_proj]\n"
PLUS = LORA + "loraplus_lr_ratio: 16\n"


def test_an_adapter_recipe_trains_adapters(tmp_path: Path, capsys: Streams) -> None:
    code, plan = written(tmp_path, LORA, suffix=".yaml")
    assert code == 0 and "Axolotl, trains adapters on documents, " in capsys.readouterr().out
    bound = check_source(SourceFile("x.plan", plan.read_text()), base=tmp_path).bound
    assert bound is not None and bound.plan.adapter is not None
    lora = bound.plan.adapter.kind
    assert (lora.rank, lora.alpha, lora.dropout, lora.rslora) == (8, 24.0, 0.0, False)
    expected = {
        f"model.layers.{layer}.{name}" for layer in range(4) for name in ("self_attn.q_proj", "mlp.down_proj")
    }
    assert set(adapted_layers(bound.inventory)) == expected


def test_first_adapters_are_those_of_the_files_directory(tmp_path: Path) -> None:
    code, plan = written(tmp_path, f"{LORA}lora_model_dir: out/first\n", suffix=".yaml")
    assert code == 0
    assert '  start = "out/first"\n' in plan.read_text()


def test_trained_lengths_of_rows_are_those_of_the_file(tmp_path: Path) -> None:
    code, plan = written(tmp_path, f"{LORA}peft_use_dora: true\n", suffix=".yaml")
    assert code == 0
    assert "alpha = 24.0, dora = true)" in plan.read_text()


def test_a_base_in_4_bits_is_one_in_the_plan(tmp_path: Path, capsys: Streams) -> None:
    """On a model whose layers have whole blocks; other formats of 4 bits stop the import."""
    model = str(ROOT / "plans/models/tiny-gemma2")
    text = f"{LORA}load_in_4bit: true\n"
    code, plan = written(tmp_path, text, "--model", model, suffix=".yaml")
    assert code == 0 and "  base = nf4\n" in plan.read_text()
    assert "float32 scales" in capsys.readouterr().out
    text += "bnb_config_kwargs:\n  bnb_4bit_quant_type: fp4\n"
    assert written(tmp_path, text, "--model", model, suffix=".yaml")[0] == 1
    assert "no plan trains what `bnb_config_kwargs.bnb_4bit_quant_type` asks for" in capsys.readouterr().err
    factory = (
        "stage: sft\nfinetuning_type: lora\ncutoff_len: 256\nlora_target: q_proj\nmax_steps: 5\n"
        "per_device_train_batch_size: 1\nquantization_bit: {}\n"
    )
    codes = {
        bits: written(tmp_path, factory.format(bits), "--model", model, suffix=".yaml")[0] for bits in (4, 8)
    }
    assert codes == {4: 0, 8: 1}, capsys.readouterr().err


def test_adapters_of_another_kind_stop_the_import(tmp_path: Path, capsys: Streams) -> None:
    code, plan = written(tmp_path, PLUS, suffix=".yaml")
    err = capsys.readouterr().err
    assert code == 1 and not plan.exists()
    assert f"error: {tmp_path / 'config.yaml'}:10: no plan trains what `loraplus_lr_ratio` asks for" in err
    assert "help: pass --accept loraplus_lr_ratio to train without it" in err


def test_label_smoothing_is_trained_with(tmp_path: Path) -> None:
    text = '{"output_dir": "o", "max_steps": 5, "learning_rate": 1e-5, "label_smoothing_factor": 0.1}'
    code, plan = written(tmp_path, text, "--sequence-length", "256")
    assert code == 0 and "  loss = cross_entropy(label_smoothing = 0.1)\n" in plan.read_text()


def test_what_is_accepted_is_trained_without_and_noted(tmp_path: Path, capsys: Streams) -> None:
    code, plan = written(tmp_path, PLUS, "--accept", "loraplus_lr_ratio", suffix=".yaml")
    assert code == 0 and plan.exists()
    assert "TRAINED OTHERWISE\n" in capsys.readouterr().out


def test_an_acceptance_that_accepts_nothing_is_an_error(tmp_path: Path, capsys: Streams) -> None:
    code, plan = written(tmp_path, PLUS, "--accept", "loraplus_lr_ratio", "--accept", "lora", suffix=".yaml")
    assert code == 2 and not plan.exists()
    assert "--accept lora: no key of this name stops the import" in capsys.readouterr().err


def test_a_table_is_accepted_by_its_name(tmp_path: Path, capsys: Streams) -> None:
    text = f"{LORA}qat:\n  weight_dtype: int4\n  group_size: 32\n"
    assert written(tmp_path, text, suffix=".yaml")[0] == 1
    assert capsys.readouterr().err.count("help: pass --accept qat to train without it") == 1
    assert written(tmp_path, text, "--accept", "qat", suffix=".yaml")[0] == 0


ARGUMENTS = {"per_device_train_batch_size": 2, "max_steps": 100, "learning_rate": 2e-5}


def arguments(tmp_path: Path, **more: Any) -> str:
    code, plan = written(tmp_path, json.dumps({**ARGUMENTS, **more}), "--sequence-length", "256")
    assert code == 0
    return plan.read_text(encoding="utf-8")


@pytest.mark.parametrize("off", [0, 0.0, None])
def test_clipping_that_is_off_stays_off(tmp_path: Path, off: float | None) -> None:
    assert "clip_grad_norm" not in arguments(tmp_path, max_grad_norm=off)


def test_without_a_word_the_trainer_clips_at_one(tmp_path: Path) -> None:
    assert "clip_grad_norm = 1.0" in arguments(tmp_path)


def test_a_decay_of_no_steps_keeps_the_peak() -> None:
    text = as_plan_text("torchtitan/current_groups.json")
    assert "schedule = constant(warmup = 20 steps)" in text


def test_the_trainer_decays_neither_norms_nor_biases(tmp_path: Path) -> None:
    rule = '["model.layers.*.{input,post_attention}_layernorm", "model.norm"] -> group(weight_decay = 0.0)'
    assert rule in arguments(tmp_path, weight_decay=0.1)
    assert "group" not in arguments(tmp_path, weight_decay=0.0)


SPARED = ("tiny-llama", "tiny-gpt2", "tiny-phi3", "tiny-gemma2", "tiny-qwen3-moe", "tiny-opt-flattened")
SPARED += ("starcoderbase-1b", "tiny-deepseek-v3", "tiny-codegen")


@pytest.mark.parametrize("name", SPARED)
def test_the_rule_spares_what_the_trainer_spares(name: str) -> None:
    directory = ROOT / "plans/models" / name
    found = KnownModels(ROOT, cache_dir()).get(str(directory))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    decayed = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    names = tuple(dict.fromkeys((*found.names(), *(fqn for fqn, _, _ in found.parameters()))))
    chosen = {name for text in spared_patterns(found) for name in parse_own(text, NOWHERE).select(names)}
    for fqn, module, _ in found.parameters():
        assert (fqn in chosen or module.fqn in chosen) == (fqn not in decayed), fqn


def test_deepspeed_does_not_decay_without_a_word(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 3},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        }
    )
    _, plan = written(tmp_path, text, "--sequence-length", "256", "--steps", "10")
    assert "weight_decay = 0.0" in plan.read_text(encoding="utf-8")


def test_what_the_launcher_fills_in_is_what_the_trainer_fills_in(tmp_path: Path, capsys: Streams) -> None:
    text = json.dumps(
        {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": "auto",
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": "auto", "betas": "auto"}},
        }
    )
    _, plan = written(tmp_path, text, "--sequence-length", "256", "--steps", "10")
    written_plan = plan.read_text(encoding="utf-8")
    assert "clip_grad_norm = 1.0" in written_plan
    assert "betas = [0.9, 0.999], weight_decay = 0.0" in written_plan
    assert "which transformers' Trainer fills in for `auto` by default" in capsys.readouterr().out


TRL = (
    "model_name_or_path: org/base\ndataset_name: org/chats\nper_device_train_batch_size: 2\nmax_steps: 100\n"
)
TRL += "learning_rate: 2.0e-5\nmax_length: 256\nassistant_only_loss: true\n"


def test_a_recipe_of_trl_needs_the_data_that_it_names(tmp_path: Path, capsys: Streams) -> None:
    code, _ = written(tmp_path, TRL, suffix=".yaml")
    assert code == 1
    assert "config.yaml:2: the file trains on data that planc can't read" in capsys.readouterr().err


def test_a_recipe_of_trl_trains_pretrained_weights_on_whole_conversations(tmp_path: Path) -> None:
    _, plan = written(tmp_path, TRL, "--data", "chats/*.jsonl", suffix=".yaml")
    text = plan.read_text(encoding="utf-8")
    assert "weights = pretrained" in text and "packing = none" in text
    assert 'source = chat("chats/*.jsonl", train_on = answers)' in text


def test_conversations_of_axolotl_are_not_documents(tmp_path: Path) -> None:
    data = "datasets:\n  - path: data/chats.jsonl\n    type: chat_template\n    field_messages: turns\n"
    text = LORA.replace("adapter: lora\nlora_r: 8\n", data)
    _, plan = written(tmp_path, text, suffix=".yaml")
    assert 'source = chat("data/chats.jsonl", field = "turns")' in plan.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        (
            "    train_on_eos: turn\n    roles_to_train: [assistant]\n",
            "train_on = answers, train_on_end_of_turn = true",
        ),
        ("    train_on_eos:\n    roles_to_train:\n", "train_on = last_answer, train_on_end_of_turn = false"),
        ("    chat_template: jinja\n    chat_template_jinja: my/own.jinja\n", 'template = "my/own.jinja"'),
        ("    split: train[:20%]\n", 'split = "train[:20%]"'),
        ("    message_property_mappings:\n      role: from\n      content: value\n", ""),
        ("    chat_template: tokenizer_default\n    message_field_training: train\n    split: train\n", ""),
    ],
)
def test_what_axolotl_trains_on_of_conversations_is_in_the_plan(
    tmp_path: Path, lines: str, arguments: str
) -> None:
    data = f"datasets:\n  - path: data/chats.jsonl\n    type: chat_template\n{lines}"
    _, plan = written(tmp_path, LORA.replace("adapter: lora\nlora_r: 8\n", data), suffix=".yaml")
    wanted = f'source = chat("data/chats.jsonl"{", " if arguments else ""}{arguments})'
    assert wanted in " ".join(plan.read_text(encoding="utf-8").split()).replace("( ", "(").replace(", )", ")")


@pytest.mark.parametrize(
    "line",
    [
        *(
            "train_on_eos: all",
            "roles_to_train: [user]",
            "chat_template: llama3",
            "drop_system_message: true",
        ),
        *(
            "chat_template_jinja: '{{ messages }}'",
            "message_field_training: is_trained",
            "field_tools: functions",
        ),
    ],
)
def test_what_a_plan_does_not_have_of_conversations_stops_the_import(
    tmp_path: Path, capsys: Streams, line: str
) -> None:
    data = f"datasets:\n  - path: data/chats.jsonl\n    type: chat_template\n    {line}\n"
    code, plan = written(tmp_path, LORA.replace("adapter: lora\nlora_r: 8\n", data), suffix=".yaml")
    assert code == 1 and not plan.exists()
    assert f"pass --accept datasets.0.{line.partition(':')[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "block"),
    [
        ("val_set_size: 0.05\n", "share = 5 % every = 100 steps"),
        ("val_set_size: 0.005\neval_steps: 20\n", "share = 0.5 % every = 20 steps"),
        ("val_set_size: 0\n", ""),
        ("val_set_size: 2000\neval_steps: 20\n", ""),
    ],
)
def test_a_share_that_axolotl_holds_out_is_held_out(tmp_path: Path, lines: str, block: str) -> None:
    code, plan = written(tmp_path, LORA.replace("adapter: lora\nlora_r: 8\n", lines), suffix=".yaml")
    text = " ".join(plan.read_text(encoding="utf-8").replace(",", "").split())
    assert code == 0
    assert (f'eval "held_out" {{ {block} }}' in text) if block else "eval" not in text


def test_groups_of_parameters_leave_the_rate_open() -> None:
    options = {facts.MODEL: MODEL, facts.WORLD_SIZE: 8, facts.DATA: "data/*.txt"}
    (missing,) = as_plan(CONFIGS / "torchtitan/current_groups.json", options).missing
    assert missing.help == "pass --lr X"


def test_adam_with_decay_is_not_adamw(tmp_path: Path) -> None:
    text = "[training]\nseq_len = 256\nsteps = 10\n[optimizer]\nname = 'Adam'\nweight_decay = 0.1\n"
    assert written(tmp_path, text, suffix=".toml")[0] == 1
    code, plan = written(tmp_path, text.replace("0.1", "0.0"), suffix=".toml")
    assert code == 0 and "weight_decay = 0.0" in plan.read_text(encoding="utf-8")


def as_plan_text(name: str) -> str:
    text = imported(CONFIGS / name).text
    assert text is not None
    return text


def test_the_current_keys_of_torchtitan_are_not_filled_with_defaults() -> None:
    plan = plan_of(CONFIGS / "torchtitan/current.json")
    assert (plan.data.sequence_length, plan.data.micro_batch, plan.train.tokens_per_step) == (256, 4, 32_768)
    assert (plan.optimizer.kind.lr, plan.optimizer.kind.weight_decay) == (4e-4, 0.05)
    assert plan.optimizer.kind.betas == (0.9, 0.97)
    text = as_plan_text("torchtitan/current.json")
    assert "wsd(warmup = 20 steps, decay = 400 steps)" in text and '"model.layers.*" -> full' in text


def test_micro_batches_of_a_current_pipeline_add_up_to_a_step() -> None:
    plan = plan_of(CONFIGS / "torchtitan/current_groups.json")
    assert (plan.data.micro_batch, plan.train.tokens_per_step) == (4, 4 * 4 * 4 * 256)
