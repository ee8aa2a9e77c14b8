"""What single findings name, and what they suggest, is what the plan at hand needs."""

from __future__ import annotations

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
