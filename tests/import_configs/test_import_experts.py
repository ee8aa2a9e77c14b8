"""Configs with experts on several ranks: the plan has them on the same ranks, or the import says why not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from planc.api import check_source
from planc.hub.user_dirs import cache_dir
from planc.import_configs import facts
from planc.import_configs.detect import Undetected
from planc.import_configs.importing import Result, import_config
from planc.import_configs.kind import NoteKind
from planc.import_configs.lowering import Target
from planc.inventory.known import KnownModels
from planc.inventory.schema import Inventory
from planc.plan.spec import Plan
from planc.source import SourceFile

ROOT = Path(__file__).parents[2]
CONFIGS = Path(__file__).parent / "configs"
MOE, DENSE = "plans/models/tiny-qwen3-moe", "plans/models/tiny-llama"
TITAN = (CONFIGS / "torchtitan/experts.toml").read_text(encoding="utf-8")
AUTOMODEL = (CONFIGS / "automodel/experts.yaml").read_text(encoding="utf-8")
MEGATRON = (CONFIGS / "megatron/gpt.sh").read_text(encoding="utf-8")
OF_TITAN = "parallelism.expert_parallel_degree"
TP = ("\ntensor_parallel_degree = 1", "\ntensor_parallel_degree = 2")
CP = ("context_parallel_degree = 1", "context_parallel_degree = 2")
ETP = ("expert_tensor_parallel_degree = 1", "expert_tensor_parallel_degree = 2")
SHARDS = ("--use-distributed-optimizer", "--use-megatron-fsdp --expert-model-parallel-size 2")


@cache
def inventory(model: str) -> Inventory:
    return KnownModels(ROOT, cache_dir()).get(model)


def imported(text: str, name: str, *edits: tuple[str, str], model: str = MOE) -> Result:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    options = {facts.MODEL: model, facts.WORLD_SIZE: 8, facts.DATA: "data/*.txt"}
    target = Target(lambda name: False, inventory=inventory(model))
    accepted: Sequence[str] = ("dataset._target_",) if name.endswith("yaml") else ()
    result = import_config(
        {name: text.encode()}, from_kind=None, options=options, target=target, accepted=accepted
    )
    assert not isinstance(result, Undetected)
    return result


def plan_of(result: Result) -> Plan:
    """The plan, which check accepts."""
    assert result.text is not None, [(note.key, note.text) for note in result.refused]
    checked = check_source(SourceFile("imported.plan", result.text), base=ROOT)
    assert checked.ok and checked.bound is not None, [one.primary.text for one in checked.diagnostics]
    return checked.bound.plan


@pytest.mark.parametrize(
    ("text", "name", "edits", "on", "size"),
    [
        (TITAN, "own.toml", (), ("dp_shard",), 4),
        (TITAN, "own.toml", (CP,), ("dp_shard", "cp"), 4),
        (TITAN, "own.toml", (TP,), ("dp_shard", "tp"), 4),
        (TITAN, "own.toml", (TP, ("expert_tensor_parallel_degree = 1\n", "")), ("dp_shard", "tp"), 4),
        (TITAN, "own.toml", (TP, ETP), ("dp_shard",), 4),
        (AUTOMODEL, "own.yaml", (("ep_size: 8", "ep_size: 4"),), ("dp_shard",), 4),
        (MEGATRON, "own.sh", (SHARDS,), ("dp_shard",), 2),
        (
            MEGATRON,
            "own.sh",
            (SHARDS, ("--bf16", "--bf16 --expert-tensor-parallel-size 1")),
            ("dp_shard", "tp"),
            2,
        ),
    ],
)
def test_experts_are_on_the_ranks_of_the_file(
    text: str, name: str, edits: Sequence[tuple[str, str]], on: tuple[str, ...], size: int
) -> None:
    """Ranks of tp have other experts in torchtitan, and shards of them in Megatron, by default."""
    spec = plan_of(imported(text, name, *edits)).expert_parallel
    assert spec is not None
    assert (tuple(map(str, spec.on)), spec.size) == (on, size)


@pytest.mark.parametrize(
    ("edits", "model", "reason"),
    [
        ((), DENSE, "the model has no routed experts"),
        ((("data_parallel_shard_degree = -1", "data_parallel_shard_degree = 1"),), MOE, "replicates weights"),
        (
            (TP, ("[checkpoint]", "enable_sequence_parallel = false\n[checkpoint]")),
            MOE,
            "the same tokens",
        ),
        (
            (("expert_parallel_degree = 4", "expert_parallel_degree = 3"),),
            MOE,
            "3 is not a factor of dp_shard",
        ),
        ((TP, ("expert_tensor_parallel_degree = 1", ETP[1].replace("2", "4"))), MOE, "all 2 ranks of tp"),
    ],
)
def test_experts_that_no_plan_has_so_stay_together_with_a_reason(
    edits: Sequence[tuple[str, str]], model: str, reason: str
) -> None:
    """What is trained is the same, so the import does not stop."""
    if "shard_degree = 1" in str(edits):
        edits = (*edits, ("data_parallel_replicate_degree = 1", "data_parallel_replicate_degree = 8"))
    result = imported(TITAN, "own.toml", *edits, model=model)
    (note,) = [one for one in result.notes if one.key == OF_TITAN]
    assert note.kind is NoteKind.SET_ASIDE
    assert reason in note.text
    assert plan_of(result).expert_parallel is None
