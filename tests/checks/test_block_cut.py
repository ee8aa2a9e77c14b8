"""Blocks of 8-bit moments that tp cuts."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_plan
from tests.plans import write_plan

PLAN = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  tp = 2
}
tensor_parallel on tp {
  auto
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 2
}
optimizer {
  kind = adamw_8bit(lr = 1e-3, block = %d)
}
train {
  steps = 10
}
%s"""
FROZEN = 'freeze {\n  ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"] -> frozen\n}\n'


@pytest.mark.parametrize(
    ("block", "more", "expected"),
    # 64 and 176 columns for two ranks.
    [(16, "", []), (8, "", []), (32, "", ["P728"]), (256, "", ["P728"]), (256, FROZEN, [])],
)
def test_a_rank_has_whole_blocks(block: int, more: str, expected: list[str], tmp_path: Path) -> None:
    found = check_plan(write_plan(tmp_path, text=PLAN % (block, more)))
    assert [finding.code.code for finding in found.diagnostics] == expected
    assert all("block = 16" in str(finding.help) for finding in found.diagnostics)
