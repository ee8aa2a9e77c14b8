"""`planc estimate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.plans import PLANS, QUICKSTART, TINY, write_plan


def test_json_adds_nothing_up_but_the_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(write_plan(tmp_path, text=TINY))
    assert main(["estimate", plan, "--set", "mesh.tp=4", "--output-format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["world_size"] == 8
    assert document["facts"]["peak_memory"] == document["memory"]["peak"]["num_bytes"]
    sent = sum(one["sent_bytes"] for one in document["collectives"])
    assert document["facts"]["sent_bytes_per_step"] == sent
    assert all(part["formula"] and part["source"] for part in document["memory"]["parts"])


def test_one_rank_sends_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(write_plan(tmp_path, text=TINY))
    assert main(["estimate", plan, "--set", "mesh.tp=1", "--set", "mesh.dp_shard=1"]) == 0
    assert "COMMUNICATION PER STEP, PER RANK\n  none\n" in capsys.readouterr().out


def test_a_plan_with_errors_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(write_plan(tmp_path, text=TINY))
    assert main(["estimate", plan, "--set", "mesh.tp=8"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "P402" in err


@pytest.mark.parametrize("view", ["memory", "collectives"])
def test_show_has_the_parts_of_an_estimate(view: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(PLANS / "llama-3.1-8b.plan")
    assert main(["estimate", plan, "--output-format", "json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main(["show", plan, f"--{view}", "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[view] == whole[view]


@pytest.mark.parametrize("view", ["memory", "collectives"])
def test_show_says_what_an_estimate_says(view: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(PLANS / "llama-3.1-8b.plan")
    assert main(["estimate", plan, "--gpu", "h100"]) == 0
    whole = capsys.readouterr().out
    assert main(["show", plan, f"--{view}", "--gpu", "h100"]) == 0
    assert all(line in whole for line in capsys.readouterr().out.splitlines())


def test_a_sound_plan_says_its_peak_and_what_it_sends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(PLANS / "llama-3.1-8b.plan"), "--gpu", "h100"]) == 0
    out = capsys.readouterr().out
    assert "about 23.26 GiB reserved per rank at the peak, 29 % of h100, in forward and loss" in out
    assert "333 GiB sent per rank and step" in out


@pytest.mark.parametrize(
    "command", [["estimate"], ["show"], ["show", "--memory"], ["estimate", "--gpu", "h100"]]
)
def test_figures_of_a_plan_that_breaks_an_expectation_come_before_the_finding(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(QUICKSTART), "--set", "data.micro_batch=2"]) == 1
    out, err = capfd.readouterr()
    assert "18.44 MiB" in out
    assert err.count("error[P702]: an expectation does not hold") == 1
    assert main([*command, str(QUICKSTART), "--set", "mesh.tp=8"]) == 1
    assert capfd.readouterr().out == ""
