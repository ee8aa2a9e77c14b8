"""Words of other tools that turn a feature on or off: what a plan writes for each value."""

from __future__ import annotations

import re

import pytest

from planc.api import Checked, check_source
from planc.plan.foreign_words import foreign_words
from planc.source import SourceFile
from planc.styles import STYLES, Style
from planc.styles.modules import RULES
from tests.plan.resolving import edited, fault
from tests.plans import PLANS

QUICKSTART = (PLANS / "quickstart.plan").read_text(encoding="utf-8")
BLOCK = re.compile(r"^tensor_parallel on tp \{\n(.*?)^\}\n", re.DOTALL | re.MULTILINE)
HEADS = """\
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.o_proj" -> rowwise
"""
TOGETHER = (
    "sequence parallelism takes rules for the embedding, norms, attention, MLP and head: replace the rules "
    "of `tensor_parallel` by those that `planc explain sequence_parallel` lists"
)


def check(text: str) -> Checked:
    return check_source(SourceFile("x.plan", text), base=PLANS)


def with_rules(rules: str, *, before: str = "") -> str:
    found = BLOCK.sub(f"{before}tensor_parallel on tp {{\n{rules}}}\n", QUICKSTART)
    assert found != QUICKSTART
    return found


def test_the_rules_of_sequence_parallelism_are_those_of_the_preset_and_check() -> None:
    preset = (PLANS / "presets" / "llama.plan").read_text(encoding="utf-8")
    assert RULES.partition("\n")[2] == preset.partition(' "sequence_parallel" {\n')[2]
    assert check(BLOCK.sub(RULES, with_rules(HEADS))).diagnostics == ()


@pytest.mark.parametrize(
    ("rules", "before"),
    [
        (f"  sequence_parallel = true\n{HEADS}", ""),
        (f"  sequence_parallel\n{HEADS}", ""),
        (HEADS, "sequence_parallel = true\n"),
        (HEADS, "sequence_parallel\n"),
    ],
)
def test_the_switch_for_sequence_parallelism_leads_to_the_whole_set(rules: str, before: str) -> None:
    (found,) = check(with_rules(rules, before=before)).diagnostics
    assert found.help == TOGETHER


@pytest.mark.parametrize("written", ["sequence_parallel = true", "sequence_parallel"])
def test_the_switch_next_to_the_rules_is_removed(written: str) -> None:
    (found,) = check(QUICKSTART.replace("tp {\n", f"tp {{\n  {written}\n", 1)).diagnostics
    assert found.help == "remove it: `tensor_parallel on tp` already does this"


def test_a_norm_alone_is_told_where_the_other_rules_are() -> None:
    (found,) = check(with_rules(f'  "model.norm" -> sequence_parallel\n{HEADS}')).diagnostics
    assert found.code.code == "P415"
    assert "`planc explain sequence_parallel` lists the rules that shard it" in str(found.help)


@pytest.mark.parametrize("style", [one for one in STYLES if not one.together], ids=lambda style: style.name)
def test_a_style_without_a_pattern_gets_one_that_it_is_for(style: Style) -> None:
    (found,) = check(with_rules(f"  {style.name}\n")).diagnostics
    assert found.help == f"write a rule that names the modules: `{style.example}`"
    models = ("tiny-llama", "tiny-phi3", "tiny-qwen3-moe", "tiny-deepseek-v3", "qwen3-8b", "tiny-llama4")
    texts = (with_rules(f"  {style.example}\n").replace("tiny-llama", model, 1) for model in models)
    codes = [{one.code.code for one in check(text).diagnostics} for text in texts]
    assert all("P405" not in one for one in codes)
    assert any("P203" not in one for one in codes), "no model has such a module"


@pytest.mark.parametrize(
    ("written", "help"),
    [
        ("pipeline_model_parallel_size = 1", "write `pp = 1`"),
        ("ep = 2", "experts are on ranks of a factor of `dp_shard`: write `expert_parallel on dp_shard {"),
        ("expert_model_parallel_size = 1", "remove it"),
        ("sequence_parallel = false", "remove it: this is off by default"),
        ("gradient_checkpointing = false", "remove it: this is off by default"),
        ("use_wandb = false", "remove it: this is off by default"),
        ("cpu_offload = false", "remove it: this is off by default"),
        ("label_smoothing = 0.0", "write `loss = cross_entropy(label_smoothing = 0.0)`"),
        ("quantization = none", "remove it: planc does not train in fp8"),
        ("pretrained = false", "write `weights = pretrained` in `model`"),
        ("shuffle = false", "the sample order is always shuffled"),
    ],
)
def test_a_word_that_asks_for_nothing_is_removed(written: str, help: str) -> None:
    assert str(fault(edited(("steps = 60", f"steps = 60\n  {written}"))).help).startswith(help)


def test_false_is_not_answered_with_a_line_that_turns_the_feature_on() -> None:
    """Unless the row says that both values ask for something."""
    for word, foreign in foreign_words().items():
        if not foreign.line or foreign.both or foreign.factors or "<" in foreign.line:
            continue
        found = fault(edited(("steps = 60", f"steps = 60\n  {word} = false")))
        assert str(found.help).startswith(("remove it", "move it")), word
