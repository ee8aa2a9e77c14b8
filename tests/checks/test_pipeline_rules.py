"""Rules on pipelines: what they name, and what their helps give."""

from __future__ import annotations

import re

import pytest
from by_code import codes, only
from variants import Check

from planc.graph.ops import FullyShard, SplitPipeline

PLAN = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  pp = 2
}
pipeline on pp {
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 10
  tokens_per_step = 4096
}
"""


def with_rules(*rules: str, pp: int = 2) -> str:
    written = "".join(f"  {rule}\n" for rule in rules)
    return PLAN.replace("pipeline on pp {\n", f"pipeline on pp {{\n{written}").replace("pp = 2", f"pp = {pp}")


def test_a_pipeline_is_sound(check: Check) -> None:
    assert codes(check(PLAN)) == []
    assert codes(check(PLAN, settings=("pipeline.schedule=interleaved(stages_per_rank=2)",))) == []
    assert codes(check(PLAN, settings=("pipeline.schedule=zero_bubble",))) == []


def test_layers_in_no_unit_are_in_one_of_their_stage(check: Check) -> None:
    fsdp = 'fsdp on dp_shard {\n  "model.layers.*.mlp" -> unit\n  "model.layers.{0,2,3}" -> unit\n}\n'
    found = check(PLAN.replace("  pp = 2\n", "  pp = 2\n  dp_shard = 2\n") + fsdp)
    assert found.graph is not None
    groups = [group for op in found.graph.setup if isinstance(op, FullyShard) for group in op.groups]
    assert groups[-4:] == [("model.embed_tokens",), ("model.layers.1",), ("model.norm", "lm_head"), ("",)]
    alone = fsdp.replace('  "model.layers.*.mlp" -> unit\n', "")
    warning = only(check(PLAN.replace("  pp = 2\n", "  pp = 2\n  dp_shard = 2\n") + alone), "P502")
    assert warning.notes == (
        "one unit of each stage would gather these parameters before the stage's first layer, and keep them",
    )


def test_ranks_of_pp_need_a_pipeline(check: Check) -> None:
    without = PLAN.replace("pipeline on pp {\n}\n", "")
    finding = only(check(without), "P306")
    assert finding.help is not None
    (block,) = re.findall("`(pipeline .*?)`", finding.help)
    assert codes(check(f"{without}{block}\n")) == []


def test_one_rank_of_pp_runs_no_pipeline(check: Check) -> None:
    found = check(with_rules('"model.layers.*" -> stage(0)', pp=1))
    assert codes(found) == []
    assert found.graph is not None
    assert not [op for op in found.graph.ops() if op.name.startswith("pipeline.")]


WRONG = {
    "a stage too many": (
        ('"model.layers.{0..1}" -> stage(1)', '"model.layers.{2..3}" -> stage(2)'),
        "P323",
        "stage 2 of 2 stages, which count from 0",
    ),
    "layers left out": (
        ('"model.layers.0" -> stage(0)', '"model.layers.1" -> stage(1)'),
        "P323",
        "no rule gives `model.layers.{2..3}` a stage",
    ),
    "an empty stage": (('"model.layers.*" -> stage(1)',), "P323", "no layer is in stage 0"),
    "back": (
        ('"model.layers.{0,3}" -> stage(0)', '"model.layers.{1..2}" -> stage(1)'),
        "P324",
        "`model.layers.3` is in stage 0",
    ),
    "a module in a layer": (
        (
            '"model.layers.{0..1}" -> stage(0)',
            '"model.layers.{2..3}" -> stage(1)',
            '"model.layers.3.mlp" -> stage(1)',
        ),
        "P322",
        "this rule names `model.layers.3.mlp`",
    ),
    "uneven": (
        ('"model.layers.{0..2}" -> stage(0)', '"model.layers.3" -> stage(1)'),
        "P328",
        "stage 0 computes 1.",
    ),
}


@pytest.mark.parametrize(("rules", "code", "text"), WRONG.values(), ids=WRONG)
def test_rules_that_a_pipeline_can_t_run(rules: tuple[str, ...], code: str, text: str, check: Check) -> None:
    finding = only(check(with_rules(*rules)), code)
    assert text in finding.primary.text
    assert finding.help is not None
    balanced = re.findall(r'`("\S+" -> stage\(\d+\))`', finding.help)
    assert codes(check(with_rules(*balanced))) == []
    assert codes(check(PLAN)) == [], "without the rules"


@pytest.mark.parametrize(
    ("schedule", "pp", "text", "help"),
    [
        ("one_f_one_b", 5, "5 stages for 4 layers", "set `pp` to at most 4"),
        (
            "interleaved(stages_per_rank = 2)",
            4,
            "4 ranks with 2 stages each for 4 layers",
            "set `pp` to at most 2",
        ),
        ("interleaved(stages_per_rank = 4)", 2, "2 ranks with 4 stages each for 4 layers", "set `pp` to 1"),
    ],
)
def test_every_stage_needs_a_layer(schedule: str, pp: int, text: str, help: str, check: Check) -> None:
    found = check(with_rules(f"schedule = {schedule}", pp=pp), settings=("train.tokens_per_step=5120",))
    finding = only(found, "P321")
    assert (finding.primary.text, finding.help) == (text, help)


def test_what_crosses_is_named(check: Check) -> None:
    finding = only(check(PLAN.replace("tiny-llama", "tiny-gemma3n")), "P325")
    assert "`model.embed_tokens_per_layer`" in finding.primary.text
    assert any("`model.layers.*.altup`" in note for note in finding.notes)


TIED = PLAN.replace("tiny-llama", "tiny-llama-tied")
OWN_UNITS = """fsdp on dp_shard {
  "model.layers.*" -> unit(reshard_after_forward = false)
  "model.embed_tokens" -> unit(reshard_after_forward = false)
  "lm_head" -> unit(reshard_after_forward = false)
}
"""


def test_the_first_and_the_last_stage_may_share_a_weight(check: Check) -> None:
    assert codes(check(TIED)) == []
    assert codes(check(TIED, settings=("pipeline.schedule=interleaved(stages_per_rank=2)",))) == []


def test_each_of_two_stages_shards_its_copy_in_its_own_unit(check: Check) -> None:
    assert codes(check(TIED + OWN_UNITS, settings=("mesh.dp_shard=2",))) == []
    one_rank = check(TIED + OWN_UNITS, settings=("mesh.dp_shard=2", "mesh.pp=1"))
    assert "P503" in codes(one_rank)
    interleaved = ("mesh.dp_shard=2", "mesh.pp=1", "pipeline.schedule=interleaved(stages_per_rank=2)")
    assert "P503" in codes(check(TIED + OWN_UNITS, settings=interleaved))


def test_a_recomputed_stack_is_refused(check: Check) -> None:
    text = PLAN + 'activation_checkpoint {\n  "model" -> full\n}\n'
    assert "`model` would be recomputed together, in stages 0..1" in [
        one.primary.text for one in check(text).diagnostics if one.code.code == "P326"
    ]
    assert codes(check(text.replace('"model"', '"model.layers.*"'))) == []


SHARDED = 'fsdp on dp_shard { "model.layers.*" -> unit(reshard_after_forward = false) }'
BEYOND = {
    "elastic": (f"elastic on dp_shard {{ sizes = [1] }}\n{SHARDED}", ("mesh.dp_shard=2",), "elastic"),
    "compile": (
        'compile { "model.layers.*" -> region }',
        ("pipeline.schedule=zero_bubble",),
        "compile",
    ),
    "profile": ("profile { first_step = 2, last_step = 3 }", (), "profile"),
    "host memory": (
        SHARDED.replace("{ ", "{ cpu_offload = true, "),
        ("mesh.dp_shard=2",),
        "fsdp.cpu_offload",
    ),
    "units ahead": (SHARDED.replace("{ ", "{ prefetch = 2, "), ("mesh.dp_shard=2",), "fsdp.prefetch"),
}


@pytest.mark.parametrize(("block", "settings", "path"), BEYOND.values(), ids=BEYOND)
def test_what_pipelines_are_not_combined_with(
    block: str, settings: tuple[str, ...], path: str, check: Check
) -> None:
    found = check(f"{PLAN}{block}\n", settings=settings)
    assert [one.primary.span for one in found.diagnostics if one.code.code == "P320"] == [
        found.plan.span(path)
    ]


def test_waiting_is_a_share_of_the_step(check: Check) -> None:
    """(pp - 1) / (m + pp - 1) with one micro-batch on 4 ranks: 3 / 4."""
    finding = only(check(with_rules(pp=4), settings=("train.tokens_per_step=1024",)), "P327")
    assert finding.primary.text == "with 1 micro-batch, ranks wait 75 % of a step"
    assert finding.help is not None and "`tokens_per_step` to 4_096" in finding.help
    assert codes(check(with_rules(pp=4), settings=("train.tokens_per_step=4096",))) == []


def test_gradients_of_weights_fill_a_part_of_the_waiting(check: Check) -> None:
    settings = ("train.tokens_per_step=1024", "pipeline.schedule=zero_bubble")
    finding = only(check(with_rules(pp=4), settings=settings), "P327")
    assert finding.primary.text == "with 1 micro-batch, ranks wait 67 % of a step"


def test_layers_are_balanced_by_what_they_compute(check: Check) -> None:
    """The head counts: of the splits with two layers in one stage, the last stage has one."""
    found = check(with_rules(pp=3), settings=("train.tokens_per_step=3072",))
    assert found.graph is not None
    (split,) = (op for op in found.graph.setup if isinstance(op, SplitPipeline))
    sizes = [sum(name.startswith("model.layers.") for name in stage) for stage in split.stages]
    assert sizes == [1, 2, 1]
