"""`planc verify`: what it prints, what it exits with, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from planc.cli.main import main
from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.verify.outcome import Item, Report, Verdict, report_text
from planc.verify.verify import verify
from planc.vocab import MeshDim
from tests.plans import PLANS, TINY, write_plan
from tests.verify.conftest import checked
from tests.verify.faults import TP2
from tests.verify.items import ITEMS

HERE = Path(__file__).parent
TWO_LISTS = HERE.parent / "catalogue" / "models" / "tiny-hrm"


def test_a_right_plan_is_equal_in_every_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_plan(tmp_path, text=TINY)
    assert main(["verify", str(plan), "--set", "size=4", "--output-format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = [item.value for item in ITEMS]
    assert [one["item"] for one in found["items"]] == expected
    assert found["ok"] and all(one["ok"] for one in found["items"])
    assert found["mesh"] == {"pp": 1, "dp_replicate": 1, "dp_shard": 4, "cp": 1, "tp": 2}
    assert found["ran"]["mesh"] == {"pp": 1, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 2}
    assert found["seconds"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="`make gpu` runs it")
def test_nccl_without_a_device_can_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_plan(tmp_path, text=TINY)
    assert main(["verify", str(plan), "--backend", "nccl"]) == 2
    assert "4 ranks on nccl, but PyTorch sees 0 CUDA devices" in capsys.readouterr().err


def fail_in_backward(state: State, op: Op, position: Position) -> None:
    if isinstance(op, ops.SyncGradients):
        raise ArithmeticError("planted")


def test_a_run_that_fails_is_told_by_its_op(workspace: Path) -> None:
    plan = checked(TP2, workspace=workspace)
    assert plan.bound is not None and plan.graph is not None
    report = verify(plan.bound, plan.graph, base=workspace, before_op=fail_in_backward)
    (verdict,) = report.verdicts
    assert (verdict.item, verdict.ok, report.ok) == (Item.RUN, False, False)
    assert "ArithmeticError in op `grads.sync`" in verdict.detail


REPORT = Report(
    name="x",
    plan_hash="0123456789abcdef",
    mesh=((MeshDim.DP_SHARD, 64), (MeshDim.TP, 2)),
    ran_mesh=((MeshDim.DP_SHARD, 2), (MeshDim.TP, 2)),
    num_layers=32,
    kept=(0, 1),
    sequence_length=64,
    dtype="float32",
    num_steps=3,
    verdicts=(
        Verdict(Item.LOSS, True, "step 1", 1.25e-7, 1e-5),
        Verdict(Item.GRADIENTS, False, "model.norm.weight", float("inf"), 1e-5),
    ),
)


def test_a_report_says_what_was_run_and_what_differs() -> None:
    assert report_text(REPORT) == (
        "x  0123456789ab\n"
        "  ran dp_shard 2 for 64 · tp 2 on 4 ranks, 2 of 32 layers, 64 tokens, float32\n"
        "  loss       ok       1.2e-07  step 1\n"
        "  gradients  DIFFERS      inf  model.norm.weight (limit 1e-05)\n"
    )


def test_json_has_no_number_that_json_lacks() -> None:
    assert json.loads(json.dumps(REPORT.data(), allow_nan=False))["items"][1]["error"] is None


def test_a_plan_with_errors_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_plan(tmp_path, text=TINY)
    assert main(["verify", str(plan), "--set", "mesh.tp=3"]) == 1
    assert "error[P" in capsys.readouterr().err


def test_a_model_without_a_small_twin_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny-llama").symlink_to(TWO_LISTS)
    text = TINY.replace("  tp = 2\n", "").replace("tensor_parallel on tp {\n  auto\n}\n", "")
    text = text.replace('"model.layers.*"', '"model.{H,L}_module.layers.*"')
    plan = write_plan(tmp_path, text=text)
    assert main(["verify", str(plan)]) == 2
    assert "cannot verify this plan: the model has 2 lists of layers" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("plan", sorted(PLANS.glob("*.plan")), ids=lambda path: path.stem)
def test_every_plan_that_ships_is_equal(plan: Path) -> None:
    assert main(["verify", str(plan)]) == 0
