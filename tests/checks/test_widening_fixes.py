"""A fix of a pattern that would select more than the pattern says is never safe, in any block."""

from __future__ import annotations

import itertools

import pytest
from by_code import only

from planc.api import Checked, check_source
from planc.source import SourceFile
from tests.plans import PLANS

PLAN = (PLANS / "quickstart.plan").read_text(encoding="utf-8")
NORMS = '"**.*norm*" -> group'
BLOCKS = {
    "optimizer": (f"{NORMS}(weight_decay = 0.0)", '"{}" -> group(weight_decay = 0.0)'),
    "activation_checkpoint": ('"model.layers.*" -> none', '"{}" -> full'),
    "fsdp": ('["model.norm", "lm_head"] -> unit(reshard_after_forward = false)', '"{}" -> unit'),
    "tensor_parallel": ('"lm_head" -> colwise(input = Shard(1), output = Shard(-1))', '"{}" -> colwise'),
}
HEADS = ("**", "*", "model.**", "model", "lm_head", "**.q_proj", "**.self_attn", "encoder.model.layers.*")
ENDS = ("bias", "weight", "*bias*", "biases", "kernel", "gamma", "{bias,beta}", "layernorm.bias")
WRITTEN = (
    *(".".join(parts) for parts in itertools.product(HEADS, ENDS)),
    *("bias", "norm", "q_proj", "weight", "LayerNorm.weight", "vision.lm_head", "teacher.model.norm"),
)


def check(text: str) -> Checked:
    return check_source(SourceFile("x.plan", text), base=PLANS)


def edited(block: str, written: str) -> str:
    old, new = BLOCKS[block]
    assert old in PLAN
    return PLAN.replace(old, new.format(written), 1)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("block", BLOCKS)
def test_no_safe_fix_drops_a_segment_or_writes_a_wildcard(block: str) -> None:
    wide = []
    for written in WRITTEN:
        for found in check(edited(block, written)).diagnostics:
            if found.code.code == "P203" and found.fix is not None and found.fix.is_safe:
                replaced = found.fix.replacement
                is_whole = found.fix.span.end_column - found.fix.span.column == len(written)
                # What is put before the whole pattern names the place of what it selects.
                if not replaced.endswith(f".{written}") and ("*" in replaced or is_whole):
                    wide.append(f"{written}: {replaced}")
    assert wide == []


@pytest.mark.parametrize("written", ["**.bias", "model.**.bias", "*.weight", "**.*.bias"])
@pytest.mark.parametrize("block", BLOCKS)
def test_no_help_proposes_what_selects_everything(block: str, written: str) -> None:
    for found in check(edited(block, written)).diagnostics:
        if found.code.code == "P203":
            assert found.fix is None and "did you mean" not in (found.help or "")


@pytest.mark.parametrize(
    ("rule", "removed"),
    [
        ('"**.bias" -> group', "the rule"),
        ('"model.**.bias" -> group', "the rule"),
        ('"**.q_proj.bias" -> group', "the rule"),
        ('"lm_head.bias" -> group', "the rule"),
        ('"bias" -> group', "the rule"),
        ('"layers.*.bias" -> group', "the rule"),
        ('["**.*norm*", "**.bias"] -> group', '`"**.bias"`'),
        ('"**.{*norm*,bias}" -> group', "`bias`"),
    ],
)
def test_a_group_of_biases_that_the_model_lacks_is_removed(rule: str, removed: str) -> None:
    found = only(check(PLAN.replace(NORMS, rule)), "P203")
    assert found.help == f"the model has no biases; remove {removed}"
    assert found.fix is None
    assert "no module" not in found.primary.text


def test_a_group_of_norms_by_another_name_is_told_what_names_them() -> None:
    found = only(check(PLAN.replace(NORMS, '"LayerNorm.weight" -> group')), "P203")
    assert found.help == "write `**.*norm*` for all norms"
    assert check(PLAN).ok


def test_a_group_of_biases_of_a_model_with_biases_is_fine() -> None:
    text = PLAN.replace("models/tiny-llama", "models/qwen2.5-7b").replace(NORMS, '"**.bias" -> group')
    assert "P203" not in [one.code.code for one in check(text).diagnostics]
