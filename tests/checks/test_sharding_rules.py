"""Shards without rows, and sums of many ranks in few bits."""

from __future__ import annotations

import pytest
from by_code import of
from variants import Check

from planc.diagnostics import Severity

PLAN = """\
model {
  hf = "models/MODEL"
}
mesh {
MESH
}
fsdp on dp_shard {
FSDP
  "model.layers.*" -> unit
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


def plan(*, mesh: str, model: str = "tiny-llama", fsdp: str = "", tensor_parallel: str = "") -> str:
    text = PLAN.replace("MODEL", model).replace("MESH", mesh).replace("FSDP", fsdp)
    return text.replace("fsdp on", f"{tensor_parallel}\nfsdp on")


@pytest.mark.parametrize("dp_shard", [2, 4])
def test_ranks_that_all_hold_experts_say_nothing(dp_shard: int, check: Check) -> None:
    assert not of("P520", check(plan(model="tiny-qwen3-moe", mesh=f"  dp_shard = {dp_shard}")))


def test_more_ranks_than_experts_are_told_what_it_costs(check: Check) -> None:
    (found,) = of("P520", check(plan(model="tiny-qwen3-moe", mesh="  dp_shard = 24")))
    assert found.severity is Severity.NOTE
    assert "experts.{gate_up,down}_proj" in found.primary.text
    assert "20 ranks hold none" in found.notes[0]
    assert "6 times the bytes" in found.notes[1]
    assert "set `dp_shard` to 4" in found.help


def test_rows_that_tp_divides_count_as_each_rank_holds_them(check: Check) -> None:
    """352 rows of an up projection are 88 on each of four ranks of tp, for 128 of fsdp; whole they do."""
    auto = "tensor_parallel on tp {\n  auto\n}"
    divided = check(plan(mesh="  dp_shard = 128\n  tp = 4", tensor_parallel=auto))
    whole = check(plan(mesh="  dp_shard = 128"))
    assert any("mlp.{gate,up}_proj" in one.primary.text for one in of("P520", divided))
    assert not any("mlp" in one.primary.text for one in of("P520", whole))


@pytest.mark.parametrize(
    ("mesh", "fsdp", "found"),
    [
        ("  dp_shard = 33", "  param_dtype = bfloat16", False),
        ("  dp_shard = 34", "  param_dtype = bfloat16", True),
        ("  dp_shard = 257", "  param_dtype = float16", False),
        ("  dp_shard = 258", "  param_dtype = float16", True),
        ("  dp_shard = 512", "", False),
        ("  dp_shard = 512", "  param_dtype = bfloat16\n  reduce_dtype = float32", False),
        (
            "  dp_replicate = 16\n  dp_shard = 4",
            "  replicate_on = dp_replicate\n  param_dtype = bfloat16",
            True,
        ),
    ],
)
def test_ranks_and_dtype_decide_whether_a_sum_is_warned_of(
    mesh: str, fsdp: str, found: bool, check: Check
) -> None:
    assert bool(of("P521", check(plan(mesh=mesh, fsdp=fsdp)))) is found


@pytest.mark.parametrize(("size", "found"), [(33, False), (34, True)])
def test_whole_replicas_sum_in_the_models_dtype(size: int, found: bool, check: Check) -> None:
    text = plan(mesh=f"  dp_replicate = {size}")
    start, end = text.index("fsdp on"), text.index("data {")
    whole = text[:start] + text[end:]
    assert bool(of("P521", check(whole.replace("model {", "model {\n  dtype = bfloat16")))) is found
    assert not of("P521", check(whole))


def test_a_sum_coarser_than_compute_is_one_finding(check: Check) -> None:
    text = plan(mesh="  dp_shard = 64", fsdp="  param_dtype = float32\n  reduce_dtype = bfloat16")
    checked = check(text)
    assert of("P506", checked)
    assert not of("P521", checked)
