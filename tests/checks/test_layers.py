"""Plans of several files: whose rule counts, and what is said of `override`."""

from __future__ import annotations

import pytest
from by_code import codes
from variants import Check

from planc.api import Checked
from planc.show.resolved import resolved_text

BASE = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  dp_shard = 2
}
fsdp on dp_shard {
  "model.layers.*" -> unit
  "lm_head" -> unit
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
}
"""
OFF = "unit(reshard_after_forward = false)"
MIDDLE = (
    f'extends "base.plan"\nfsdp {{\n  override "model.layers.*" -> {OFF}\n  override "lm_head" -> {OFF}\n}}\n'
)


def stacked(check: Check, top: str, *, middle: str = MIDDLE) -> Checked:
    """A plan on a layer with overrides on a base."""
    text = 'extends "middle.plan"\n' + top
    found: Checked = check(text, files={"base.plan": BASE, "middle.plan": middle})
    return found


def reshards(checked: Checked) -> dict[str, bool]:
    assert checked.bound is not None, checked.diagnostics
    return {fqn: group.unit.reshard_after_forward for group in checked.bound.units for fqn in group.fqns}


def test_an_override_is_overridden_by_a_layer_above(check: Check) -> None:
    found = stacked(check, 'fsdp {\n  override "model.layers.1" -> unit\n}\n')
    assert codes(found) == []
    assert reshards(found) == {
        "model.layers.0": False,
        "model.layers.1": True,
        "model.layers.2": False,
        "model.layers.3": False,
        "lm_head": False,
    }


def test_a_plain_rule_above_an_override_is_no_silent_loser(check: Check) -> None:
    found = stacked(check, 'fsdp {\n  "lm_head" -> unit\n}\n')
    assert codes(found) == ["P221"]


def test_a_plain_rule_that_agrees_with_an_override_below_is_fine(check: Check) -> None:
    assert codes(stacked(check, f'fsdp {{\n  "lm_head" -> {OFF}\n}}\n')) == []


def test_overrides_of_one_layer_still_have_to_agree(check: Check) -> None:
    found = stacked(
        check, f'fsdp {{\n  override "model.layers.*" -> unit\n  override "model.layers.1" -> {OFF}\n}}\n'
    )
    assert codes(found) == ["P221"]


@pytest.mark.parametrize(
    "top",
    ["", 'fsdp {\n  override "model.layers.1" -> unit\n  override ["model.norm", "lm_head"] -> unit\n}\n'],
)
def test_one_resolved_file_means_the_same(check: Check, top: str) -> None:
    found = stacked(check, top)
    assert found.bound is not None, found.diagnostics
    again: Checked = check(resolved_text(found.bound))
    assert codes(again) in ([], ["P218", "P218"])
    assert reshards(again) == reshards(found)
    assert again.bound is not None
    assert [group.fqns for group in again.bound.units] == [group.fqns for group in found.bound.units]


def test_an_override_of_an_included_file_may_be_for_another_plan(check: Check) -> None:
    middle = 'extends "base.plan"\nfsdp {\n  override "model.norm" -> unit\n}\n'
    assert codes(stacked(check, "", middle=middle)) == []


def test_an_override_beside_auto_overrides_what_auto_covers(check: Check) -> None:
    rules = 'tensor_parallel on tp {\n  auto\n  override "%s" -> replicate\n}\n'
    text = BASE.replace("dp_shard = 2", "dp_shard = 2\n  tp = 2")
    assert codes(check(text + rules % "lm_head")) == []
    assert codes(check(text + rules % "model.norm")) == ["P218"]
