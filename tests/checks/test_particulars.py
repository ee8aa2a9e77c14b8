"""What single findings name, and what they suggest, is what the plan at hand needs."""

from __future__ import annotations

import re

import pytest
from by_code import codes, only
from variants import Check

from planc.show.resolved import resolved_text
from tests.plans import TINY

REPLICAS = """\
model {
  hf = "models/tiny-llama"
}

mesh {
  dp_replicate = 4
}

data {
  source = text("data/*.txt")
  sequence_length = 256
  micro_batch = 4
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 120
  tokens_per_step = 8192
}
"""
"""Whole replicas, without FSDP and tensor parallelism."""


def edited(old: str, new: str, *, text: str = TINY) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("model.layers.{0..3}", "model.layers.3", "`model.layers.3`"),
        ("model.layers.*", "model.layers.{1..2}", "`model.layers.{1..2}`"),
        ("model.layers.*", "model.layers.{0,2}", "`model.layers.0` and `model.layers.2`"),
        ("model.layers.*", "model.layers.{0..3}", "`model.layers.*`"),
    ],
)
def test_an_overlap_names_what_both_rules_match(first: str, second: str, shared: str, check: Check) -> None:
    rules = f'activation_checkpoint {{\n  "{first}" -> full\n  "{second}" -> none\n}}\n'
    assert only(check(TINY + rules), "P221").primary.text == f"also matches {shared}"


def test_an_overlap_on_parameters_of_one_layer_names_that_layer(check: Check) -> None:
    rules = '  "model.layers.0.**" -> group(lr = 1.0)\n  "**.input_layernorm" -> group(lr = 0.5)\n'
    text = edited("lr = 1e-3)\n", f"lr = 1e-3)\n{rules}")
    found = only(check(text), "P221")
    assert found.primary.text == "also matches `model.layers.0.input_layernorm.weight`"


def values(help: str | None) -> list[str]:
    """What a help line offers after `set ... to`."""
    named = re.match(r"set `\w+` to ([\d_, or]+)", help or "")
    assert named, help
    return re.findall(r"[\d_]+", named.group(1))


@pytest.mark.parametrize(("sizes", "tokens"), [("[3]", 8192), ("[3, 2]", 9000), ("[3]", 9216)])
def test_tokens_of_an_elastic_step_are_offered_that_every_mesh_takes(
    sizes: str, tokens: int, check: Check
) -> None:
    elastic = f"elastic on dp_replicate {{ sizes = {sizes} }}\ncheckpoint {{ save_every = 10 steps }}\n"
    text = edited("8192", str(tokens), text=REPLICAS) + elastic
    offered = values(only(check(text), "P701").help)
    for value in offered:
        assert codes(check(text, settings=(f"train.tokens_per_step={value}",))) == []


LONG = edited("tp = 2\n", "tp = 4\n  cp = 2\n")
LONG = edited("fsdp on dp_shard {", "fsdp on dp_shard, cp {", text=LONG) + (
    'context_parallel on cp { ["input_ids", "labels", "position_ids"] -> Shard(1) }\n'
)


@pytest.mark.parametrize("setting", ["data.sequence_length=1028", "data.sequence_length=1030"])
def test_a_length_is_offered_that_tp_and_cp_and_the_tokens_of_a_step_allow(
    setting: str, check: Check
) -> None:
    rules = 'tensor_parallel on tp {\n  auto\n  override "model.norm" -> sequence_parallel\n'
    text = edited("tensor_parallel on tp {\n  auto\n", rules, text=LONG)
    text = edited("steps = 10\n", "steps = 10\n  tokens_per_step = 65_536\n", text=text)
    helps = [str(one.help) for one in check(text, settings=(setting,)).diagnostics]
    offered = [values(help) for help in helps if "sequence_length" in help]
    assert offered and all(one == ["1024"] for one in offered)


def test_tokens_a_step_are_not_fitted_to_a_length_that_is_wrong(check: Check) -> None:
    text = edited("steps = 10\n", "steps = 10\n  tokens_per_step = 65_536\n", text=LONG)
    assert codes(check(text, settings=("data.sequence_length=1026",))) == ["P601"]


def test_tp_on_nodes_is_offered_for_heads_that_it_divides(check: Check) -> None:
    text = edited("tp = 2\n", "tp = 4\n  devices_per_node = 6\n")
    found = only(check(text, settings=("size=3",)), "P304")
    assert values(found.help) == ["1", "2"]


def test_findings_on_one_size_of_tp_offer_the_same_sizes(check: Check) -> None:
    """Those that fit nodes as well as the heads."""
    text = edited("tp = 2\n", "tp = 3\n  devices_per_node = 4\n")
    found = check(text, settings=("size=4",)).diagnostics
    assert [one.code.code for one in found] == ["P304", "P401"]
    assert values(found[0].help) == values(found[1].help) == ["1", "2", "4"]
    text = edited("tp = 2\n", "tp = 3\n  devices_per_node = 2\n")
    for one in check(text, settings=("size=4",)).diagnostics:
        assert values(one.help) == ["1", "2"]


MESHES = ("dp_replicate = 4", "tp = 1", "dp_replicate = 2, tp = 2")


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", "P714"), ("float16", "P709")])
def test_a_plan_without_fsdp_is_told_of_all_that_computes_in_few_bits(
    mesh: str, dtype: str, code: str, check: Check
) -> None:
    text = edited("dp_replicate = 4", mesh, text=REPLICAS)
    text = edited('tiny-llama"\n', f'tiny-llama"\n  dtype = {dtype}\n', text=text)
    text += "tensor_parallel on tp { auto }\n" if "tp = 2" in mesh else ""
    found = only(check(text), code)
    block = re.search(r"add `(fsdp .*)`$", found.help or "")
    assert block is not None, found.help
    mended = edited(f"dtype = {dtype}", "dtype = float32", text=text) + block.group(1)
    assert codes(check(mended)) == []


def test_a_folder_beside_the_one_that_is_not_there_is_named(check: Check) -> None:
    found = only(check(edited("models/tiny-llama", "models/tiny-lama")), "P216")
    assert found.help == "did you mean `models/tiny-llama`?"


TIED = edited("models/tiny-llama", "models/tiny-llama-tied").replace("lr = 1e-3)\n", "lr = 1e-3)\n{rule}\n")


@pytest.mark.parametrize("pattern", ["lm_head.weight", "lm_head", "*.weight"])
def test_a_rule_for_a_tied_parameter_is_told_its_name(pattern: str, check: Check) -> None:
    text = TIED.replace("{rule}", f'  "{pattern}" -> group(weight_decay = 0.0)')
    found = only(check(text), "P203")
    tied = "`lm_head.weight` is tied to `model.embed_tokens.weight`: they are one parameter"
    assert found.primary.text == tied
    assert codes(check(text.replace(pattern, "model.embed_tokens.weight"))) == []


@pytest.mark.parametrize(
    ("pattern", "label", "alternative"),
    [
        (
            "model.layers.*.{self_attn,mlp}.q_proj",
            "no child `q_proj` under `model.layers.*.mlp`",
            "mlp",
        ),
        (
            "model.{layers,embed_tokens}.*.mlp.down_proj",
            "no child `mlp` under `model.embed_tokens.*`",
            "embed_tokens",
        ),
    ],
)
def test_an_alternative_that_exists_is_told_what_it_lacks(
    pattern: str, label: str, alternative: str, check: Check
) -> None:
    rule = f'  "{pattern}" -> group(weight_decay = 0.0)\n'
    found = only(check(edited("lr = 1e-3)\n", f"lr = 1e-3)\n{rule}")), "P203")
    assert (found.primary.text, found.help) == (label, f"leave out `{alternative}`, or name what it has")
    assert found.fix is None


@pytest.mark.parametrize(
    ("pattern", "help", "first"),
    [
        ("**.*LayerNorm*", "*layernorm*", "input_layernorm, post_attention_layernorm"),
        ("model.layers.*.MLP.**", "mlp", "mlp"),
        ("model.layers.*.self_attn.Q_Proj", "q_proj", "q_proj"),
    ],
)
def test_names_in_another_case_come_first(pattern: str, help: str, first: str, check: Check) -> None:
    rule = f'  "{pattern}" -> group(weight_decay = 0.0)\n'
    text = edited("lr = 1e-3)\n", f"lr = 1e-3)\n{rule}")
    found = only(check(text), "P203")
    assert found.help == f"did you mean `{help}`?"
    assert found.fix is not None and found.fix.replacement == help
    assert found.notes[0].startswith(f"candidates: {first}")
    span = found.primary.span
    wrong = text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]
    assert "P203" not in codes(check(text.replace(wrong, help)))


@pytest.mark.parametrize(("steps", "help"), [(5, "`warmup = 1 step`, or"), (50, "5 steps` (a tenth")])
def test_a_warm_up_is_offered_that_is_one(steps: int, help: str, check: Check) -> None:
    text = edited("lr = 1e-3)", "lr = 1e-3)\n  schedule = cosine(warmup = 100 steps)")
    found = only(check(text, settings=(f"train.steps={steps}",)), "P706")
    assert help in (found.help or "")


def test_one_of_a_thing_is_singular(check: Check) -> None:
    text = edited("lr = 1e-3)", "lr = 1e-3)\n  schedule = wsd(warmup = 1 step, decay = 9 steps)")
    found = only(check(text, settings=("train.steps=2",)), "P715")
    assert found.primary.text == "1 step of warmup and 9 of decay"
    assert (found.help or "").startswith("set `decay` to at most 1 step,")


def test_expectations_are_waived_and_not_set(check: Check) -> None:
    found = only(check(TINY, settings=("expect.world_size=4",)), "P215")
    assert found.help == "leave it out: the plan expects nothing"
    text = TINY + "expect {\n  world_size == 4\n  dp_size < 9\n}\n"
    found = only(check(text, settings=("expect.world_size=2",)), "P215")
    assert found.primary.text == "an expectation can't be set, only waived"
    assert found.help is not None and found.help.startswith("write `expect.world_size=waived`")
    found = only(check(text, settings=("expect.tp_size=waived",)), "P215")
    assert found.help == "name what the plan expects: `expect.world_size` or `expect.dp_size`"


def test_a_waived_expectation_is_noted_with_the_fact(check: Check) -> None:
    """Of a fact with several, all are; the rest are proven; what was run says so."""
    text = TINY + "expect {\n  world_size == 40\n  world_size < 9\n  tokens_per_step < 2\n}\n"
    checked = check(text, settings=("expect.world_size=waived",))
    assert codes(checked) == ["P776", "P702"]
    waived = only(checked, "P776")
    assert (waived.primary.text, len(waived.secondary)) == ("world_size is 4", 2)
    checked = check(text, settings=("expect.world_size=waived", "expect.tokens_per_step=waived"))
    assert checked.graph is not None and checked.bound is not None
    assert checked.graph == check(TINY).graph
    resolved = resolved_text(checked.bound)
    assert resolved.count("# waived: ") == 3 and "# waived: world_size == 40\n" in resolved


def test_a_way_that_leaves_the_folder_of_the_plan_is_refused_with_the_reason(check: Check) -> None:
    found = only(check('extends "../plans/base/tiny-llama.plan"\n'), "P232")
    assert "planc.toml" in (found.help or "")


def test_a_broken_expectation_of_a_base_is_no_matter_of_this_plan_alone(check: Check) -> None:
    base = TINY + "expect { dp_size == 3 }\n"
    found = only(check('extends "base.plan"\n', files={"base.plan": base}), "P702")
    assert "move the expectation from the base into its plans" in (found.help or "")


def test_of_several_modules_without_a_rule_it_says_that_they_get(check: Check) -> None:
    text = edited("  auto\n", '  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))\n')
    assert only(check(text), "P415").primary.text.endswith(" and `lm_head`, which get Shard(1)")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("model.layers.*.input_layernorm", ["no unit for most parameters of the members of `model.layers`"]),
        ("model.layers.*.self_attn", ["no unit for most parameters of the members of `model.layers`"]),
        ("model.layers.*.{self_attn,mlp}", []),
        ("model.layers.*.mlp", []),
        ("model.layers.{0..2}", ["no unit for `model.layers.3`"]),
        ("lm_head", ["no unit for the members of `model.layers`"]),
    ],
)
def test_units_hold_most_of_each_layer(pattern: str, expected: list[str], check: Check) -> None:
    found = check(edited('"model.layers.*" -> unit', f'"{pattern}" -> unit')).diagnostics
    assert [one.primary.text for one in found if one.code.code == "P502"] == expected


@pytest.mark.parametrize("rules", ['"model.layers.*.mlp.*_proj" -> replicate', '"**" -> replicate'])
def test_rules_that_divide_nothing_leave_ranks_without_work_of_their_own(rules: str, check: Check) -> None:
    found = only(check(edited("  auto\n", f"  {rules}\n")), "P413")
    assert found.primary.text == "all rules are `replicate`, so 2 ranks would do the same work"


def test_one_rule_that_divides_is_enough(check: Check) -> None:
    rules = "".join(
        f'  "model.layers.*.mlp.{name}_proj" -> {style}\n'
        for name, style in (("gate", "colwise"), ("up", "colwise"), ("down", "rowwise"))
    )
    text = edited("  auto\n", f'{rules}  "lm_head" -> replicate\n')
    assert codes(check(text)) == []
