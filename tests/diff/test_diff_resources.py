"""Memory and communication in a difference: the estimate's numbers, and the expectations on them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planc.api import check_source
from planc.diff.differ import diff
from planc.diff.difference import Action, Change, Group, PlanDiff
from planc.diff.machine import render_diff_json
from planc.diff.side import Side, side_of
from planc.diff.text import render_markdown, render_text
from planc.estimate.estimate import estimate
from planc.source import SourceFile
from tests.plans import FULL, PLANS

TEXT = re.sub(r"expect \{.*?\n\}", "expect {\n  peak_memory < 1 GiB\n}", FULL, flags=re.DOTALL)


def side(*settings: str, text: str = TEXT) -> Side:
    sources = [SourceFile(f"--set[{number}]", setting) for number, setting in enumerate(settings)]
    found = side_of(check_source(SourceFile("x.plan", text), base=PLANS, settings=sources), name="x.plan")
    assert found is not None
    return found


def changed(*settings: str) -> PlanDiff:
    return diff(side(), side(*settings))


def named(found: PlanDiff, group: Group) -> dict[str, Change]:
    return {change.name: change for change in found.changes if change.group is group}


def test_memory_and_communication_are_those_of_the_estimate() -> None:
    new = side("mesh.tp=4")
    found = diff(side(), new)
    assert new.inventory is not None
    expected = estimate(new.graph, new.inventory)
    peak = named(found, Group.MEMORY)["peak"]
    assert peak.new == f"{expected.memory.peak.num_bytes / 2**20:.2f} MiB"
    over_tp = sum(one.sent_bytes for one in expected.collectives if one.over == ("tp",))
    assert named(found, Group.COMMUNICATION)["tp collectives"].new == f"{over_tp / 2**20:.2f} MiB"


def test_only_parts_that_change_are_shown_below_the_peak() -> None:
    memory = named(changed("data.micro_batch=2"), Group.MEMORY)
    assert list(memory) == ["peak", "peak phase", "activations", "loss", "gaps"]


def test_losing_a_mesh_dim_removes_its_collectives() -> None:
    communication = named(changed("mesh.tp=1"), Group.COMMUNICATION)
    gone = communication["tp collectives"]
    assert (gone.action, gone.new) == (Action.REMOVE, None)
    assert gone.note == "reduce_scatter 36 -> 0, all_gather 36 -> 0, all_reduce 17 -> 0"


def test_equal_bytes_in_other_portions_are_a_change() -> None:
    communication = named(changed("data.micro_batch=2"), Group.COMMUNICATION)
    assert communication["tp collectives"].note.startswith("reduce_scatter 36 -> 72, all_gather 36 -> 72")


def test_a_change_of_the_log_leaves_both_out() -> None:
    found = changed("train.log_every=2 steps")
    assert named(found, Group.MEMORY) == named(found, Group.COMMUNICATION) == {}


def test_a_peak_beyond_its_expectation_says_so() -> None:
    found = changed("data.sequence_length=2048", "train.tokens_per_step=262_144", "data.micro_batch=64")
    (finding,) = named(found, Group.MEMORY)["peak"].findings
    assert (finding.code, finding.breaks) == ("P702", True)
    text = render_text(found, colour=False)
    assert re.search(r"peak +\d+\.\d\d MiB -> \d\.\d\d GiB +breaks `expect`, x.plan:\d+ \[P702 error\]", text)
    assert "ERRORS" not in text


def test_tp_over_nodes_stands_at_what_it_sends() -> None:
    text = TEXT.replace("tp = 2", "tp = 2\n  devices_per_node = 2")
    found = diff(side(text=text), side("mesh.tp=4", text=text))
    (finding,) = named(found, Group.COMMUNICATION)["tp collectives"].findings
    assert (finding.code, finding.severity, finding.breaks) == ("P304", "warning", False)
    assert "[P304 warning]" in render_text(found, colour=False)
    assert "1 warning, 1 note." in render_text(found, colour=False)


def test_a_unit_shared_by_both_values_is_written_once() -> None:
    text = render_text(changed("mesh.tp=4"), colour=False)
    assert re.search(r"peak +\d+\.\d\d -> \d+\.\d\d MiB", text)


def test_headings_say_what_the_numbers_are_of() -> None:
    found = changed("mesh.tp=4")
    assert "\nMEMORY PER RANK\n" in render_text(found, colour=False)
    assert "\nCOMMUNICATION PER STEP, PER RANK\n" in render_text(found, colour=False)
    assert "**Communication per step, per rank**" in render_markdown(found)
    groups = {change["group"] for change in json.loads(render_diff_json(found))["changes"]}
    assert groups >= {"memory", "communication"}


def test_a_model_that_is_not_here_is_said() -> None:
    found = diff(Side("old", side().graph), side("mesh.tp=4"))
    (peak,) = named(found, Group.MEMORY).values()
    assert peak.note == "not compared: a model is not here"


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-405b"])
def test_large_models_are_compared(name: str) -> None:
    path: Path = PLANS / f"{name}.plan"
    text = path.read_text(encoding="utf-8")
    found = diff(side(text=text), side("data.sequence_length=16_384", text=text))
    assert named(found, Group.MEMORY)["peak"].action is Action.CHANGE
