"""`planc.check` and `planc.compile`: the commands' findings and artifacts, as values."""

from __future__ import annotations

from pathlib import Path

import pytest

import planc
from planc.cli.main import main


def test_a_sound_plan_is_true_and_prints_what_it_is(plan: Path) -> None:
    found = planc.check(plan)
    assert found and found.ok
    assert repr(found).startswith(f"{plan}: OK")
    assert "(6 steps, 1 rank)" in repr(found)


def test_errors_are_those_of_the_command_with_their_codes(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planc.check(plan, overrides=["train.tokens_per_step=100"])
    assert not found
    assert [one.code.code for one in found.errors] == ["P701"] and "P701" in found.codes
    assert main(["check", str(plan), "--set", "train.tokens_per_step=100", "--output-format", "concise"]) == 1
    assert capsys.readouterr().out.count("P701") == 1
    assert "error[P701]" in repr(found) and found.text in f"{found!r}\n"


def test_a_compiled_plan_is_the_one_that_the_command_writes(plan: Path, tmp_path: Path) -> None:
    compiled = planc.compile(plan, overrides=["train.steps=3"])
    assert (compiled.num_steps, compiled.world_size, compiled.mesh) == (3, 1, {})
    command, own = tmp_path / "command.json", tmp_path / "own.json"
    assert main(["compile", str(plan), "--set", "train.steps=3", "-o", str(command), "-q"]) == 0
    compiled.save(own)
    assert own.read_bytes() == command.read_bytes()
    assert planc.compile(own).plan_hash == compiled.plan_hash
    assert compiled.plan_hash[:12] in repr(compiled)


def test_compiling_a_faulty_plan_raises_its_findings(plan: Path) -> None:
    with pytest.raises(planc.PlanRefused) as caught:
        planc.compile(plan, overrides=["train.tokens_per_step=100"])
    assert caught.value.code is planc.ExitCode.INPUT
    assert [one.code.code for one in caught.value.diagnostics if one.severity == "error"] == ["P701"]
    assert "error[P701]" in str(caught.value)


def test_a_bare_text_is_no_list_of_overrides(plan: Path) -> None:
    with pytest.raises(ValueError, match="overrides takes a list"):
        planc.check(plan, overrides="train.steps=3")
