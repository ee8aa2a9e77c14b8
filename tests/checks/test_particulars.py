"""What single findings name, and what they suggest, is what the plan at hand needs."""

from __future__ import annotations

import re

import pytest
from variants import Check

from planc.api import Checked
from planc.diagnostics import Diagnostic
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


def codes(checked: Checked) -> list[str]:
    return [diagnostic.code.code for diagnostic in checked.diagnostics]


def only(checked: Checked, code: str) -> Diagnostic:
    found = [diagnostic for diagnostic in checked.diagnostics if diagnostic.code.code == code]
    assert len(found) == 1, codes(checked)
    return found[0]


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
    """What a help line offers after `can be`."""
    named = re.match(r"\w+ can be ([\d_, or]+)", help or "")
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
