"""Configs with pipelines: ranks, schedules and micro batches arrive in plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_source
from planc.import_configs import facts
from planc.import_configs.detect import Undetected
from planc.import_configs.importing import Result, import_config
from planc.import_configs.kind import NoteKind
from planc.import_configs.lowering import Target
from planc.plan.pipeline_schedule import Interleaved, OneFOneB
from planc.plan.spec import Plan
from planc.source import SourceFile

ROOT = Path(__file__).parents[2]
CONFIGS = Path(__file__).parent / "configs"
TORCHTITAN, AUTOMODEL = CONFIGS / "torchtitan/pipeline.toml", CONFIGS / "automodel/pipeline.yaml"


def imported(text: str, *, name: str, gpus: int = 8, accepted: tuple[str, ...] = ()) -> Result:
    options = {facts.MODEL: "plans/models/tiny-llama", facts.WORLD_SIZE: gpus, facts.DATA: "data/*.txt"}
    target = Target(lambda name: False)
    result = import_config(
        {name: text.encode()}, from_kind=None, options=options, target=target, accepted=accepted
    )
    assert not isinstance(result, Undetected)
    return result


def plan_of(path: Path) -> Plan:
    accepted = ("dataset._target_",) if path == AUTOMODEL else ()
    result = imported(path.read_text(encoding="utf-8"), name=path.name, accepted=accepted)
    assert result.text is not None
    bound = check_source(SourceFile("imported.plan", result.text), base=ROOT).bound
    assert bound is not None
    return bound.plan


def test_a_pipeline_reads_the_batch_of_a_rank_in_micro_batches() -> None:
    """Both tools pass `local_batch_size` through the pipeline in parts of one sequence, unless a file says
    otherwise."""
    titan, automodel = (
        plan_of(CONFIGS / name) for name in ("torchtitan/pipeline.toml", "automodel/pipeline.yaml")
    )
    assert (titan.mesh.pp, titan.mesh.dp_shard, automodel.mesh.pp, automodel.mesh.dp_shard) == (2, 4, 2, 2)
    assert titan.pipeline is not None and titan.pipeline.schedule == Interleaved(2)
    assert automodel.pipeline is not None and automodel.pipeline.schedule == OneFOneB()
    assert (titan.data.micro_batch, automodel.data.micro_batch) == (1, 1)
    assert titan.train.tokens_per_step == 2 * 4 * 256
    assert automodel.train.tokens_per_step == 64 * 256


@pytest.mark.parametrize(
    ("schedule", "micro_batch", "written"),
    [("GPipe", 4, "gpipe"), ("1F1B", 2, "one_f_one_b"), ("Interleaved1F1B", 8, "interleaved")],
)
def test_schedules_of_torch_have_their_names_in_plans(schedule: str, micro_batch: int, written: str) -> None:
    text = f"""
[training]
local_batch_size = 8
seq_len = 128
[optimizer]
early_step_in_backward = false
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "{schedule}"
pipeline_parallel_microbatch_size = {micro_batch}
"""
    result = imported(text, name="own.toml", gpus=4)
    assert result.text is not None
    assert f"schedule = {written}" in result.text
    assert f"micro_batch = {micro_batch}\n" in result.text
    assert f"tokens_per_step = {8 * 2 * 128}" in result.text


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble", "DualPipeV", "LoopedBFS"])
def test_other_schedules_are_left_out_with_the_reason(schedule: str) -> None:
    text = TORCHTITAN.read_text(encoding="utf-8").replace("Interleaved1F1B", schedule)
    (note,) = [note for note in imported(text, name="own.toml").notes if note.key.endswith("_schedule")]
    assert note.kind is NoteKind.SET_ASIDE
    assert schedule in note.text


def test_micro_batches_that_do_not_divide_a_batch_are_said() -> None:
    text = AUTOMODEL.read_text(encoding="utf-8").replace("pp_microbatch_size: 1", "pp_microbatch_size: 3")
    (note,) = [note for note in imported(text, name="own.yaml").notes if note.key.endswith("microbatch_size")]
    assert note.kind is NoteKind.WRONG
    assert note.text.startswith("2 sequences are not whole micro batches of 3")
