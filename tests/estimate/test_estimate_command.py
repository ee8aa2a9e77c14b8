"""`planc estimate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.plans import PLANS, TINY, write_plan

GOLDEN = Path(__file__).with_name("llama-3.1-8b.txt")


def test_text_golden(match_golden: Callable[[Path, str], None], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(PLANS / "llama-3.1-8b.plan")]) == 0
    _, _, body = capsys.readouterr().out.partition("\n")
    match_golden(GOLDEN, body)


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
