"""Modules that add another argument than their hidden states to their output, such as BLOOM's attention."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.inventory.codec import loads
from planc.inventory.load import save_inventory
from planc.inventory.schema import Inventory
from planc.source import SourceFile
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config

PLAN = """\
model {
  hf = "bloom"
  attention = eager
}
mesh {
  tp = 2
}
tensor_parallel on tp {
  RULES
}
data {
  source = python_stdlib
  sequence_length = 32
  micro_batch = 2
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 1
}
"""
RULES = """\
"transformer.h.*.{input,post_attention}_layernorm" -> sequence_parallel
  "transformer.word_embeddings" -> embedding_rowwise
  "lm_head" -> colwise(output = Shard(-1))
  "transformer.h.0" -> prepare_input(input = Replicate(), desired = Shard(1))
  "transformer.h.1" -> prepare_input_output(input = Shard(1), desired = Shard(1), output = Replicate())
  "transformer.h.*.{self_attention,mlp}" -> prepare_input_output(
    input = Shard(1), desired = Replicate(), output = Shard(1),
  )
  "transformer.h.*.self_attention.query_key_value" -> colwise
  "transformer.h.*.self_attention.dense" -> rowwise
  "transformer.h.*.mlp.dense_h_to_4h" -> colwise
  "transformer.h.*.mlp.dense_4h_to_h" -> rowwise
"""
"""Attention and MLP add the stream, of which a rank has half, to what they compute of the whole sequence."""
AT_LAYERS = RULES.replace(
    """prepare_input_output(
    input = Shard(1), desired = Replicate(), output = Shard(1),
  )""",
    "prepare_input(input = Shard(1), desired = Replicate())",
).replace("-> rowwise\n", "-> rowwise(output = Shard(1))\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("others")
    for model_type in ("bloom", "mpt"):
        config = tiny_config(model_type, architectures()[model_type])
        (found / model_type).mkdir()
        (found / model_type / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_inventory(found / model_type)
    return found


def inventory(folder: Path) -> Inventory:
    return loads((folder / "inventory.json").read_bytes())


def check(rules: str, folder: Path) -> Checked:
    return check_source(SourceFile("bloom.plan", PLAN.replace("RULES", rules)), base=folder)


@pytest.mark.parametrize(("model_type", "expected"), [("bloom", {"self_attention", "mlp"}), ("mpt", {"ffn"})])
def test_an_inventory_names_modules_that_add_another_argument(
    model_type: str, expected: set[str], folder: Path
) -> None:
    modules = inventory(folder / model_type).modules
    assert {module.fqn.rpartition(".")[2] for module in modules if module.passes_others} == expected
    assert not any(module.passes_input for module in modules)


def test_what_is_added_is_not_prepared(folder: Path) -> None:
    findings = check(RULES, folder).diagnostics
    assert [one.code.code for one in findings] == ["P419", "P419"]
    for one, name in zip(findings, ("self_attention", "mlp"), strict=True):
        assert f"{name}`, which adds another argument to its output" in one.primary.text
        rule = f'"transformer.h.*.{name}" -> prepare_input(input = Shard(1), desired = Replicate())'
        assert one.help == f"write `{rule}`, and `output = Shard(1)` inside"


def test_the_last_layers_inside_give_what_is_added_its_layout(folder: Path) -> None:
    assert check(AT_LAYERS, folder).ok


def test_rules_on_shards_of_the_sequence_are_found(folder: Path) -> None:
    checked = check("auto(sequence_parallel = true)", folder)
    assert checked.ok and checked.bound is not None
    style = checked.bound.styles["transformer.h.0.mlp"].style
    assert (style.name, "output" in style.options) == ("prepare_input", False)
