"""Imported configs: every key is in the plan or in a note, and the plan that comes out is sound."""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from planc.api import check_source
from planc.hub.user_dirs import cache_dir
from planc.import_configs import facts
from planc.import_configs.detect import BY_NAME, KINDS, Undetected
from planc.import_configs.draft import Part, draft_of
from planc.import_configs.facts import Fact
from planc.import_configs.importing import READERS, Result, import_config
from planc.import_configs.kind import NoteKind
from planc.import_configs.leaves import Leaf
from planc.import_configs.lowering import Target, plan_text
from planc.inventory.known import KnownModels
from planc.inventory.schema import Inventory
from planc.plan.optimizer import Constant
from planc.plan.train import Preference
from planc.source import SourceFile
from planc.syntax.parse import parse

CONFIGS = Path(__file__).parent / "configs"
FILES = sorted(path for path in CONFIGS.glob("*/*") if path.is_file())
ROOT = Path(__file__).parents[2]
MODEL = "plans/models/tiny-llama"
BLOCKS = "plans/models/tiny-gemma2"


def options_of(script: str) -> dict[str, Any]:
    """The options in a script, by a reading of its own; what torchrun takes is below `launch`."""
    found: dict[str, Any] = {}
    for name, value in re.findall(r"(?m)(?<![^\s(])--([\w-]+)(?:[ =]([^\s\\#)]+))?", script):
        is_launch = name in ("nproc_per_node", "nnodes")
        found[f"launch.{name}" if is_launch else name] = yaml.safe_load(value) if value else True
    return found


LOADERS = {
    ".toml": tomllib.loads,
    ".json": json.loads,
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
    ".sh": options_of,
}

OPTIONS: dict[str, dict[Fact, Any]] = {
    "torchtitan": {},
    "accelerate": {
        facts.SEQUENCE_LENGTH: 256,
        facts.MICRO_BATCH: 2,
        facts.STEPS: 400,
        facts.LR: 1e-4,
    },
    "deepspeed": {facts.SEQUENCE_LENGTH: 256, facts.MICRO_BATCH: 2, facts.STEPS: 700, facts.LR: 3e-5},
    "automodel": {},
    "axolotl": {},
    "training-arguments": {facts.SEQUENCE_LENGTH: 256},
    "trl": {facts.CHAT: False},
    "llama-factory": {facts.CHAT: False, facts.DATA: "data/*.txt"},
    "ms-swift": {facts.CHAT: False, facts.DATA: "data/*.txt"},
    "megatron": {facts.DATA: "data/*.txt"},
}
"""What files of a kind never have, and a launch gives."""


GIVEN: dict[str, tuple[Fact, Any]] = {
    "pass --data GLOB": (facts.DATA, "data/*.txt"),
    "pass --lr X": (facts.LR, 2e-4),
}
"""What some files of a kind need of a launch, by the error that asks for it."""


def flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The leaf keys of a loaded config, by a walk of its own."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from flat(inner, (*path, str(name)))
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for index, inner in enumerate(value):
            yield from flat(inner, (*path, str(index)))
    else:
        yield ".".join(path), value


def loaded(path: Path) -> dict[str, Any]:
    return dict(flat(LOADERS[path.suffix](path.read_text(encoding="utf-8"))))


def imported(path: Path) -> Result:
    kind = path.parent.name
    gpus = {} if kind == "accelerate" else {facts.WORLD_SIZE: 8}
    options = {facts.MODEL: MODEL, **gpus, **OPTIONS[kind]}
    result = as_plan(path, options)
    if result.missing:
        options |= dict(GIVEN[one.help] for one in result.missing)
        result = as_plan(path, options)
    return as_plan(path, options, accepted=[note.key for note in result.refused])


def as_plan(path: Path, options: dict[Fact, Any], accepted: Sequence[str] = ()) -> Result:
    target = Target(lambda name: False, inventory=inventory())
    result = import_config(
        {path.name: path.read_bytes()},
        from_kind=None,
        options=options,
        target=target,
        accepted=accepted,
    )
    assert not isinstance(result, Undetected), result
    assert result.kind.name == path.parent.name
    return result


@cache
def inventory() -> Inventory:
    return KnownModels(ROOT, cache_dir()).get(MODEL)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_key_is_in_the_plan_or_in_a_note(path: Path) -> None:
    result = imported(path)
    accounted = {one.key for one in result.imported} | {note.key for note in result.notes if note.line}
    assert accounted == set(loaded(path))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_note_is_at_the_line_of_its_key(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    result = imported(path)
    for one in (*result.imported, *(note for note in result.notes if note.line)):
        last = [part for part in one.key.split(".") if not part.isdecimal()][-1]
        assert one.line is not None and last in lines[one.line - 1], one


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_plan_parses_and_passes_the_check(path: Path) -> None:
    result = imported(path)
    assert result.text is not None, result.missing
    # The usual model has layers without whole blocks.
    text = result.text.replace(MODEL, BLOCKS) if "base = nf4" in result.text else result.text
    source = SourceFile("imported.plan", text)
    assert parse(source)[0] is not None
    checked = check_source(source, base=ROOT)
    errors = [one for one in checked.diagnostics if one.code.severity == "error"]
    # Nor does it have a chat template.
    num_rendered = text.count(" chat(") + text.count(" pairs(")
    assert [one.code.code for one in errors] == ["P731"] * num_rendered, errors


def test_every_kind_has_configs() -> None:
    assert {path.parent.name for path in FILES} == {kind.name for kind in KINDS}


def plan_of(path: Path) -> Any:
    """The resolved plan of an imported config."""
    result = imported(path)
    assert result.text is not None
    bound = check_source(SourceFile("imported.plan", result.text), base=ROOT).bound
    assert bound is not None
    return bound.plan


_ADAM = "optimizer.kind"
ARRIVALS: dict[str, dict[str, str]] = {
    "torchtitan": {
        "training.local_batch_size": "data.micro_batch",
        "training.seq_len": "data.sequence_length",
        "training.max_context_length": "data.sequence_length",
        "training.steps": "train.steps",
        "training.max_norm": "optimizer.clip_grad_norm",
        "training.dtype": "model.dtype",
        "training.mixed_precision_param": "fsdp.param_dtype",
        "training.mixed_precision_reduce": "fsdp.reduce_dtype",
        "training.enable_cpu_offload": "fsdp.cpu_offload",
        "training.seed": "model.seed",
        "debug.seed": "model.seed",
        "optimizer.lr": f"{_ADAM}.lr",
        "optimizer.eps": f"{_ADAM}.eps",
        "lr_scheduler.warmup_steps": "optimizer.schedule.warmup",
        "lr_scheduler.min_lr_factor": "optimizer.schedule.min_factor",
        "parallelism.tensor_parallel_degree": "mesh.tp",
        "parallelism.pipeline_parallel_degree": "mesh.pp",
        "parallelism.context_parallel_degree": "mesh.cp",
        "parallelism.data_parallel_replicate_degree": "mesh.dp_replicate",
        "metrics.log_freq": "train.log_every",
        "comm.init_timeout_seconds": "mesh.timeout",
    },
    "accelerate": {
        "parallelism_config.parallelism_config_tp_size": "mesh.tp",
        "parallelism_config.parallelism_config_cp_size": "mesh.cp",
        "parallelism_config.parallelism_config_sp_size": "mesh.cp",
        "parallelism_config.parallelism_config_dp_replicate_size": "mesh.dp_replicate",
        "fsdp_config.fsdp_offload_params": "fsdp.cpu_offload",
        "deepspeed_config.gradient_clipping": "optimizer.clip_grad_norm",
        "num_processes": "mesh.world_size",
    },
    "deepspeed": {
        "train_micro_batch_size_per_gpu": "data.micro_batch",
        "gradient_clipping": "optimizer.clip_grad_norm",
        "optimizer.params.betas": f"{_ADAM}.betas",
        "optimizer.params.eps": f"{_ADAM}.eps",
        "optimizer.params.weight_decay": f"{_ADAM}.weight_decay",
        "optimizer.params.momentum": f"{_ADAM}.momentum",
        "scheduler.params.warmup_num_steps": "optimizer.schedule.warmup",
        "scheduler.params.cos_min_ratio": "optimizer.schedule.min_factor",
        "tensor_parallel.autotp_size": "mesh.tp",
        "steps_per_print": "train.log_every",
    },
    "automodel": {
        "step_scheduler.local_batch_size": "data.micro_batch",
        "step_scheduler.max_steps": "train.steps",
        "rng.seed": "model.seed",
        "seed": "data.shuffle_seed",
        "distributed.tp_size": "mesh.tp",
        "distributed.cp_size": "mesh.cp",
        "distributed.dp_replicate_size": "mesh.dp_replicate",
        "optimizer.lr": f"{_ADAM}.lr",
        "optimizer.betas": f"{_ADAM}.betas",
        "optimizer.eps": f"{_ADAM}.eps",
        "optimizer.weight_decay": f"{_ADAM}.weight_decay",
        "lr_scheduler.lr_warmup_steps": "optimizer.schedule.warmup",
        "max_grad_norm": "optimizer.clip_grad_norm",
        "dataset.seq_length": "data.sequence_length",
    },
    "axolotl": {
        "sequence_len": "data.sequence_length",
        "micro_batch_size": "data.micro_batch",
        "max_steps": "train.steps",
        "learning_rate": f"{_ADAM}.lr",
        "weight_decay": f"{_ADAM}.weight_decay",
        "adam_epsilon": f"{_ADAM}.eps",
        "max_grad_norm": "optimizer.clip_grad_norm",
        "warmup_steps": "optimizer.schedule.warmup",
        "cosine_min_lr_ratio": "optimizer.schedule.min_factor",
        "tensor_parallel_size": "mesh.tp",
        "context_parallel_size": "mesh.cp",
        "dp_replicate_size": "mesh.dp_replicate",
        "seed": "data.shuffle_seed",
        "logging_steps": "train.log_every",
        "save_steps": "checkpoint.save_every",
        "save_total_limit": "checkpoint.keep_last",
    },
    "training-arguments": {
        "per_device_train_batch_size": "data.micro_batch",
        "max_steps": "train.steps",
        "learning_rate": f"{_ADAM}.lr",
        "weight_decay": f"{_ADAM}.weight_decay",
        "adam_epsilon": f"{_ADAM}.eps",
        "max_grad_norm": "optimizer.clip_grad_norm",
        "seed": "model.seed",
        "data_seed": "data.shuffle_seed",
        "logging_steps": "train.log_every",
        "save_total_limit": "checkpoint.keep_last",
        "lr_scheduler_kwargs.min_lr_rate": "optimizer.schedule.min_factor",
        "parallelism_config.tp_size": "mesh.tp",
        "ddp_timeout": "mesh.timeout",
    },
    "trl": {
        "per_device_train_batch_size": "data.micro_batch",
        "max_steps": "train.steps",
        "learning_rate": f"{_ADAM}.lr",
        "torch_dtype": "model.dtype",
        "seed": "model.seed",
        "logging_steps": "train.log_every",
        "save_steps": "checkpoint.save_every",
        "lr_scheduler_kwargs.min_lr_rate": "optimizer.schedule.min_factor",
        "max_length": "data.sequence_length",
    },
    "llama-factory": {
        "cutoff_len": "data.sequence_length",
        "per_device_train_batch_size": "data.micro_batch",
        "max_steps": "train.steps",
        "learning_rate": f"{_ADAM}.lr",
        "lora_rank": "adapter.kind.rank",
        "lora_alpha": "adapter.kind.alpha",
        "lora_dropout": "adapter.kind.dropout",
        "weight_decay": f"{_ADAM}.weight_decay",
    },
    "ms-swift": {
        "max_length": "data.sequence_length",
        "per_device_train_batch_size": "data.micro_batch",
        "lora_rank": "adapter.kind.rank",
        "lora_alpha": "adapter.kind.alpha",
    },
    "megatron": {
        "micro-batch-size": "data.micro_batch",
        "seq-length": "data.sequence_length",
        "train-iters": "train.steps",
        "lr": f"{_ADAM}.lr",
        "weight-decay": f"{_ADAM}.weight_decay",
        "clip-grad": "optimizer.clip_grad_norm",
        "tensor-model-parallel-size": "mesh.tp",
    },
}
"""Keys and the settings that have their values, kept apart from the importer's own table."""


def value_at(plan: Any, path: str) -> Any:
    for name in path.split("."):
        plan = getattr(plan, name)
    return plan


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_values_arrive_as_they_are(path: Path) -> None:
    source, plan = loaded(path), plan_of(path)
    for key, place in ARRIVALS[path.parent.name].items():
        value = source.get(key)
        if value in (None, "auto", "none") or (key == "warmup_steps" and value != int(value)):
            continue
        if place == "data.micro_batch" and plan.mesh.pp > 1:
            continue
        if place == "optimizer.schedule.min_factor" and isinstance(plan.optimizer.schedule, Constant):
            continue
        found = value_at(plan, place)
        if place == "data.micro_batch" and isinstance(plan.train.loss, Preference):
            # A pair is two sequences.
            found /= 2
        if isinstance(value, list):
            assert tuple(found) == tuple(map(float, value)), (key, place)
        elif isinstance(found, bool) or not isinstance(found, int | float):
            assert found == value or str(found) == value, (key, place)
        else:
            assert float(found) == float(value), (key, place)


STEP_SIZES = [
    ("torchtitan/batch.toml", 64),
    ("deepspeed/numbers_zero3.json", 64),
    ("automodel/full.yaml", 64),
    ("automodel/context.yaml", 64),
    ("accelerate/zero1.yaml", 8 * 2 * 2),
    ("axolotl/full.yaml", 8 * 2 * 4),
    ("axolotl/meshes.yaml", 2 * 2 * 4),
    ("training-arguments/replicas.json", 8 * 2 * 4),
]
"""Sequences of a step: micro batch x accumulation x data-parallel ranks of eight."""


@pytest.mark.parametrize(("name", "sequences"), STEP_SIZES, ids=lambda value: str(value))
def test_accumulation_becomes_tokens_per_step(name: str, sequences: int) -> None:
    plan = plan_of(CONFIGS / name)
    assert plan.train.tokens_per_step == sequences * plan.data.sequence_length


MESHES = [
    ("torchtitan/plain.toml", (1, 8, 1, 1), True),
    ("torchtitan/hybrid.toml", (2, 4, 1, 1), True),
    ("torchtitan/replicas.toml", (8, 1, 1, 1), True),
    ("accelerate/full_shard.yaml", (1, 8, 1, 1), True),
    ("accelerate/hybrid_two_nodes.yaml", (2, 4, 1, 1), True),
    ("accelerate/no_shard.yaml", (8, 1, 1, 1), True),
    ("accelerate/replicas.yaml", (8, 1, 1, 1), False),
    ("accelerate/context_ring.yaml", (1, 2, 4, 1), True),
    ("accelerate/tensor_and_hybrid.yaml", (2, 2, 1, 2), True),
    ("accelerate/ulysses.yaml", (1, 4, 2, 1), True),
    ("deepspeed/tensor_parallel.json", (1, 4, 1, 2), True),
    ("deepspeed/auto_zero0.json", (8, 1, 1, 1), False),
    ("automodel/manager.yaml", (1, 4, 1, 2), True),
    ("automodel/replicas.yaml", (8, 1, 1, 1), True),
    ("axolotl/full.yaml", (8, 1, 1, 1), True),
    ("axolotl/meshes.yaml", (1, 2, 2, 2), True),
    ("axolotl/full_fsdp2.yaml", (1, 8, 1, 1), True),
    ("axolotl/full_sharded.yaml", (1, 8, 1, 1), True),
    ("axolotl/hybrid.yaml", (2, 4, 1, 1), True),
    ("training-arguments/grad_op.json", (1, 8, 1, 1), True),
]


@pytest.mark.parametrize(("name", "sizes", "has_fsdp"), MESHES, ids=lambda value: str(value))
def test_degrees_become_mesh_dims(name: str, sizes: tuple[int, ...], has_fsdp: bool) -> None:
    plan = plan_of(CONFIGS / name)
    mesh = plan.mesh
    assert (mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp) == sizes
    assert (plan.fsdp is not None) == has_fsdp


SETTINGS = [
    ("torchtitan/tensor.toml", '"model.layers.*" -> unit(reshard_after_forward = false)'),
    ("torchtitan/tensor.toml", "auto(sequence_parallel = true)"),
    ("torchtitan/context.toml", "rotate = ring"),
    (
        "torchtitan/stable_decay.toml",
        "schedule = wsd(warmup = 100 steps, decay = 150 steps, min_factor = 0.1)",
    ),
    ("torchtitan/cosine.toml", "schedule = cosine(warmup = 100 steps, min_factor = 0.05)"),
    ("torchtitan/saved.toml", "mode = async"),
    ("torchtitan/saved.toml", "save_every = 200 steps"),
    ("torchtitan/plain.toml", '"model.layers.*" -> selective'),
    ("torchtitan/plain.toml", '"model.layers.*" -> region'),
    ("torchtitan/in_backward.toml", "implementation = foreach"),
    ("accelerate/full_shard.yaml", "param_dtype = bfloat16"),
    ("accelerate/shard_grad_op.yaml", "reshard_after_forward = false"),
    ("accelerate/shard_grad_op.yaml", '"model.layers.*" -> full'),
    ("accelerate/ulysses.yaml", "rotate = ulysses"),
    ("accelerate/replicas_compiled.yaml", "fullgraph = true"),
    ("accelerate/zero3_offloaded.yaml", "cpu_offload = true"),
    ("deepspeed/numbers_zero2_decay.json", "schedule = linear(warmup = 80 steps)"),
    ("deepspeed/numbers_zero2_decay.json", "reshard_after_backward = false"),
    ("deepspeed/numbers_zero2_decay.json", "reduce_every = micro_batch"),
    ("deepspeed/auto_zero1.json", "reshard_after_backward = false"),
    ("accelerate/zero3_offloaded.yaml", "reduce_every = micro_batch"),
    ("deepspeed/cosine.json", "schedule = cosine(warmup = 70 steps, min_factor = 0.1)"),
    ("deepspeed/momentum.json", "kind = sgd(lr = 3e-5, momentum = 0.85, weight_decay = 1e-4)"),
    ("automodel/full.yaml", "schedule = cosine(warmup = 12 steps, min_factor = 0.1)"),
    ("automodel/stable.yaml", "wsd(warmup = 12 steps, decay = 20 steps, min_factor = 0.1)"),
    ("automodel/full.yaml", "timeout = 300 s"),
    ("automodel/full.yaml", "weights = pretrained"),
    ("automodel/packed.yaml", "sequence_length = 256"),
    ("axolotl/ratios.yaml", "schedule = cosine(warmup = 25 steps)"),
    ("axolotl/local_file.yaml", 'source = jsonl("data/texts.jsonl")'),
    ("axolotl/full.yaml", "packing = whole"),
    ("axolotl/liger.yaml", "loss_chunks = auto"),
    ("axolotl/tuned.yaml", 'tracker "wandb"'),
    ("training-arguments/warmup_below_one.json", "schedule = cosine(warmup = 32 steps)"),
    ("training-arguments/linear_ratio.json", "schedule = linear(warmup = 40 steps)"),
    ("training-arguments/lowest_rate.json", "min_factor = 0.1"),
    ("training-arguments/stable_decay.json", "wsd(warmup = 40 steps, decay = 100 steps)"),
    ("training-arguments/replicas.json", 'tracker "tensorboard"'),
    ("training-arguments/replicas.json", "betas = [0.88, 0.97], eps = 1e-7"),
]


@pytest.mark.parametrize(("name", "line"), SETTINGS, ids=lambda value: str(value)[:40])
def test_a_word_of_a_tool_becomes_its_setting(name: str, line: str) -> None:
    text = imported(CONFIGS / name).text
    assert text is not None and line in text, text


FAULTS = [
    ("torchtitan/in_backward.toml", "optimizer.early_step_in_backward"),
    ("torchtitan/dense_8b.toml", "parallelism.enable_async_tensor_parallel"),
    ("torchtitan/dense_8b.toml", "checkpoint.export_dtype"),
    ("torchtitan/batch_not_whole.toml", "training.global_batch_size"),
    ("accelerate/not_wrapped.yaml", "fsdp_config.fsdp_auto_wrap_policy"),
    ("accelerate/fsdp2_with_old_strategy.yaml", "fsdp_config.fsdp_sharding_strategy"),
    ("accelerate/replicas_with_tp.yaml", "parallelism_config.parallelism_config_dp_replicate_size"),
    ("accelerate/context_ring.yaml", "parallelism_config.parallelism_config_cp_size"),
    ("accelerate/unread_fsdp.yaml", "fsdp_config.fsdp_activation_checkpointing"),
    ("deepspeed/both_halves.json", "fp16.enabled"),
    ("deepspeed/offloaded_by_stage_2.json", "zero_optimization.offload_param.device"),
    ("deepspeed/offloaded_by_stage_2.json", "zero_optimization.stage3_max_live_parameters"),
    ("deepspeed/another_rate.json", "optimizer.params.lr"),
    ("deepspeed/batches_disagree.json", "gradient_accumulation_steps"),
    ("automodel/packs_too_short.yaml", "packed_sequence.packed_sequence_size"),
    ("axolotl/eight_bits.yaml", "load_in_8bit"),
    ("axolotl/recomputed_twice.yaml", "fsdp_config.activation_checkpointing"),
    ("axolotl/packs_without_lengths.yaml", "sample_packing"),
    ("axolotl/zero_and_fsdp.yaml", "deepspeed"),
    ("training-arguments/by_rank_means.json", "average_tokens_across_devices"),
    ("training-arguments/chooses_the_best.json", "load_best_model_at_end"),
    ("training-arguments/both_warmups.json", "warmup_ratio"),
    ("training-arguments/two_halves.json", "fp16"),
    ("training-arguments/epochs_and_steps.json", "num_train_epochs"),
]


@pytest.mark.parametrize(("name", "key"), FAULTS, ids=lambda value: str(value))
def test_a_known_fault_is_named_at_its_key(name: str, key: str) -> None:
    notes = imported(CONFIGS / name).notes
    assert key in {note.key for note in notes if note.kind is NoteKind.WRONG}


ODD = (None, True, 0, -1, 3, 1e9, 0.5, "auto", "none", "", 'a"b', "a\nb", "fp16", "full", (), (1, 2), 10**30)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("seed", range(40))
def test_odd_values_are_accounted_for_too(seed: int) -> None:
    draw = random.Random(seed)
    path = FILES[seed * 3]
    leaves = list(READERS[path.suffix](path.read_text(encoding="utf-8")))
    for index in draw.sample(range(len(leaves)), 4):
        leaves[index] = Leaf(leaves[index].path, draw.choice(ODD), leaves[index].line)
    options = {facts.MODEL: MODEL, facts.WORLD_SIZE: 8, **OPTIONS[path.parent.name]}
    draft = draft_of([Part(path.name, BY_NAME[path.parent.name], tuple(leaves))], options)
    made = plan_text(draft, Target(lambda name: False, inventory=inventory()), title="odd")
    draft.finish()
    accounted = {one.key for one in draft.imported} | {note.key for note in draft.notes if note.line}
    assert accounted == {leaf.key for leaf in leaves}
    assert not isinstance(made, str) or parse(SourceFile("odd.plan", made))[0] is not None


@pytest.mark.parametrize(
    ("name", "keys", "action"),
    [
        ("trl/recipe.yaml", {"activation_offloading": True}, "offload"),
        ("trl/recipe.yaml", {"activation_offloading": True, "gradient_checkpointing": None}, "offload"),
        ("trl/recipe.yaml", {"activation_offloading": True, "gradient_checkpointing": False}, None),
        ("trl/recipe.yaml", {"activation_offloading": False}, "full"),
        ("axolotl/tuned.yaml", {"activation_offloading": True}, "offload"),
        ("axolotl/tuned.yaml", {"activation_offloading": "legacy"}, "offload"),
        ("axolotl/tuned.yaml", {"activation_offloading": "disk"}, "full"),
        ("axolotl/tuned.yaml", {"activation_offloading": True, "gradient_checkpointing": None}, None),
        ("axolotl/tuned.yaml", {"gradient_checkpointing": "offload"}, "offload"),
        ("axolotl/tuned.yaml", {"gradient_checkpointing": "offload_disk"}, None),
    ],
)
def test_inputs_of_recomputed_layers_wait_on_the_host_where_the_tool_moves_them(
    name: str, keys: dict[str, Any], action: str | None, tmp_path: Path
) -> None:
    """A key that is None is not in the file. Without recomputation tools move all that backward needs."""
    folder = tmp_path / name.partition("/")[0]
    folder.mkdir()
    file = folder / "config.yaml"
    config = yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8")) | keys
    written = {key: value for key, value in config.items() if value is not None}
    file.write_text(yaml.safe_dump(written), encoding="utf-8")
    result = imported(file)
    assert result.text is not None
    rule = f'"model.layers.*" -> {action}'
    assert (rule in result.text) if action else ("activation_checkpoint" not in result.text)
    noted = {note.key for note in result.notes if note.kind is NoteKind.SET_ASIDE}
    moved = keys.get("activation_offloading")
    assert ("activation_offloading" in noted) == (moved is not None and action != "offload")
