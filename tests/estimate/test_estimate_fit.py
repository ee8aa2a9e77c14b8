"""Plans against the memory of devices."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.capacity.fits import demand
from planc.cli.main import main
from planc.devices.hardware import FITS, Demand
from planc.estimate.estimate import estimate
from planc.estimate.result import Estimate
from planc.graph.graph import Graph
from planc.inventory.schema import Inventory
from planc.source import SourceFile
from tests.plans import PLANS

PLAN = """model {
  hf = "models/llama-3.1-8b"
}
mesh {
  dp_shard = 8
}
fsdp on dp_shard {
  param_dtype = bfloat16
  reduce_dtype = float32
  "model.layers.*" -> unit
}
data {
  source = python_stdlib()
  tokenizer = bytes
  sequence_length = 8192
  micro_batch = 2
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 10
}
"""
RECOMPUTED = 'activation_checkpoint { "model.layers.*" -> full }'
GIB = 2**30


def checked(text: str, *settings: str) -> Checked:
    sources = [SourceFile(f"--set[{number}]", setting) for number, setting in enumerate(settings)]
    return check_source(SourceFile("x.plan", text), base=PLANS, settings=sources)


def with_memory(gib: int) -> str:
    return f"{PLAN}hardware {{\n  gpu = device(memory = {gib} GiB)\n}}\n"


def peak(text: str, *settings: str) -> int:
    found = checked(text, *settings)
    assert found.draft is not None
    graph = found.draft.graph
    assert found.inventory is not None, found.diagnostics
    return estimate(graph, found.inventory).memory.peak.num_bytes


def demand_of(text: str) -> Demand:
    draft = checked(text).draft
    assert draft is not None
    found = demand(draft)
    assert found is not None
    return found


def codes(found: Checked) -> list[str]:
    return [finding.code.code for finding in found.diagnostics]


@pytest.mark.parametrize(("gib", "expected"), [(140, ["P810"]), (150, ["P811"]), (170, [])])
def test_a_peak_of_146_gib_is_judged_by_the_device(gib: int, expected: list[str]) -> None:
    assert 146 < peak(PLAN) / GIB < 147
    assert codes(checked(with_memory(gib))) == expected


def test_a_plan_is_lowered_and_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the device, for what it expects, and for the summary."""
    graphs = []

    def counted(graph: Graph, inventory: Inventory) -> Estimate:
        graphs.append(graph)
        return estimate(graph, inventory)

    monkeypatch.setattr("planc.estimate.estimate.estimate", counted)
    found = checked(with_memory(170) + "expect {\n  peak_memory <= 160 GiB\n}\n")
    assert found.ok and found.draft is not None and found.draft.estimate is found.draft.estimate
    assert len(graphs) == 1 and found.graph is graphs[0]


def test_without_a_device_nothing_is_judged() -> None:
    assert codes(checked(PLAN)) == []


def test_a_finding_says_where_the_peak_is_and_what_it_is_made_of() -> None:
    (finding,) = checked(with_memory(80)).diagnostics
    assert finding.notes[0].startswith("the peak is in forward and loss: activations 98.57 GiB")


def test_a_tiny_plan_has_figures_too() -> None:
    text = PLAN.replace("llama-3.1-8b", "tiny-llama").replace("8192", "256")
    (finding,) = checked(f"{text}hardware {{\n  gpu = device(memory = 2 MiB)\n}}\n").diagnostics
    assert re.fullmatch(r"[1-9][\d.]* MiB of 2.00 MiB, \d+ %", finding.primary.text)
    assert "GiB" not in str(finding.notes)


def test_recomputing_is_named_first_with_its_own_figure() -> None:
    text = PLAN.replace("data {", 'activation_checkpoint {\n  "model.layers.*" -> full\n}\ndata {')
    first = demand_of(with_memory(80)).changes[0]
    assert first.texts == (RECOMPUTED,)
    assert first.peak_bytes == peak(text)


def test_a_smaller_micro_batch_is_named_with_the_step_that_it_makes() -> None:
    change = demand_of(with_memory(100)).changes[1]
    assert change.texts == ("data.micro_batch = 1, with 65_536 tokens per step",)
    assert change.peak_bytes == peak(PLAN, "data.micro_batch=1")


def test_a_step_of_written_tokens_is_kept_and_costs_whole_gradients() -> None:
    text = with_memory(100).replace("steps = 10", "steps = 10\n  tokens_per_step = 131_072")
    assert not [change for change in demand_of(text).changes if "micro_batch" in change.texts[0]]
    assert peak(text, "data.micro_batch=1") == peak(PLAN, "data.micro_batch=1") + 4 * 8_030_261_248


def test_gradients_of_a_step_that_accumulates_may_be_shards() -> None:
    text = with_memory(60).replace("steps = 10", "steps = 10\n  tokens_per_step = 262_144")
    first = demand_of(text).changes[0]
    assert first.texts == (RECOMPUTED, "fsdp.reduce_every = micro_batch")
    assert first.peak_bytes == peak(f"{text}{RECOMPUTED}\n", "fsdp.reduce_every=micro_batch")


def test_every_named_change_fits() -> None:
    found = demand_of(with_memory(60))
    assert found.changes
    assert all(change.peak_bytes <= FITS * found.device.memory_bytes for change in found.changes)


def test_two_changes_are_named_only_where_one_does_not_do() -> None:
    assert {len(change.texts) for change in demand_of(with_memory(80)).changes} == {1}
    assert {len(change.texts) for change in demand_of(with_memory(42)).changes} == {2}


def test_more_ranks_are_counted_over_all_changes() -> None:
    buffers = '["input_ids", "labels", "position_ids"] -> Shard(1)'
    text = with_memory(12)
    for old, new in (
        ("dp_shard = 8", "dp_shard = 8\n  cp = 2"),
        ("fsdp on dp_shard", "fsdp on dp_shard, cp"),
        ("data {", f"context_parallel on cp {{\n  {buffers}\n}}\ndata {{"),
        ("micro_batch = 2", "micro_batch = 1"),
    ):
        text = text.replace(old, new)
    named = [change.texts for change in demand_of(text).changes]
    assert ("mesh.dp_shard = 16", "mesh.cp = 16, on 256 ranks") in named


def test_a_plan_far_too_large_has_no_neighbour() -> None:
    (finding,) = checked(with_memory(2)).diagnostics
    assert finding.help is not None
    assert finding.help.startswith("no two changes make it fit")


WHOLE = re.sub(r"fsdp on .*?\n}\n", "", PLAN, flags=re.DOTALL).replace("micro_batch = 2", "micro_batch = 1")
UNITS = 'fsdp on dp_shard {\n  "model.layers.*" -> unit\n}\n'


@pytest.mark.parametrize(
    ("mesh", "named", "size"),
    [
        ("dp_replicate = 2", "mesh.dp_shard = 4 instead of dp_replicate", 4),
        ("dp_replicate = 8", "mesh.dp_shard = 8 instead of dp_replicate", 8),
        ("tp = 1", "mesh.dp_shard = 4", 4),
    ],
)
def test_a_plan_of_whole_replicas_is_told_of_sharding(mesh: str, named: str, size: int) -> None:
    text = WHOLE.replace("dp_shard = 8", mesh).replace("8192", "1024")
    text += "hardware {\n  gpu = h100\n}\n"
    change = next(change for change in demand_of(text).changes if "fsdp" in change.texts[-1])
    assert change.texts[0].startswith(f'{named}, with fsdp on dp_shard {{ "model.layers.*" -> unit }}')
    mended = text.replace(mesh, f"dp_shard = {size}") + UNITS
    assert change.peak_bytes == peak(mended)
    assert codes(checked(mended)) == []


@pytest.mark.parametrize(("gib", "expected"), [(80, ["P702"]), (170, [])])
def test_expect_can_ask_whether_a_plan_fits(gib: int, expected: list[str]) -> None:
    found = checked(f"{with_memory(gib)}expect {{\n  fits == true\n}}\n")
    assert sorted(codes(found)) == sorted(expected)


def test_expecting_a_fit_takes_a_device() -> None:
    (finding,) = checked(f"{PLAN}expect {{\n  fits == true\n}}\n").diagnostics
    assert finding.code.code == "P703"
    assert finding.help == "add a `hardware` block, or pass --gpu: `fits` needs a device"


def test_whether_it_fits_is_no_number() -> None:
    assert codes(checked(f"{with_memory(170)}expect {{\n  fits == 1\n}}\n")) == ["P205"]


def test_the_command_line_names_the_device_for_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "x.plan"
    (tmp_path / "models").symlink_to(PLANS / "models")
    plan.write_text(with_memory(170))
    assert main(["check", str(plan)]) == 0
    assert main(["check", str(plan), "--gpu", "h100"]) == 1
    assert "146 GiB of 79.10 GiB, 185 %" in capsys.readouterr().out


def test_a_plan_that_does_not_fit_is_estimated_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "x.plan"
    (tmp_path / "models").symlink_to(PLANS / "models")
    plan.write_text(with_memory(80))
    assert main(["estimate", str(plan), "--output-format", "json"]) == 1
    out, err = capsys.readouterr()
    assert "P810" in err
    assert json.loads(out)["facts"]["fits"] is False


@pytest.mark.parametrize("gpu", ["h100", "device(memory = 80 GiB, peak_flops = 1e15, devices_per_node = 4)"])
def test_a_resolved_plan_names_the_same_device(
    gpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "x.plan"
    (tmp_path / "models").symlink_to(PLANS / "models")
    plan.write_text(f"{PLAN.replace('micro_batch = 2', 'micro_batch = 1')}hardware {{\n  gpu = {gpu}\n}}\n")
    assert main(["show", str(plan), "--resolved", "--set", "mesh.dp_shard=128"]) == 0
    before, after = checked(plan.read_text()).plan, checked(capsys.readouterr().out).plan
    assert before is not None and after is not None
    assert before.hardware == after.hardware


def test_the_device_is_no_part_of_what_runs() -> None:
    plain, judged = checked(PLAN).graph, checked(with_memory(160)).graph
    assert plain == judged
