"""`planc schema`, held against what the commands write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planc.cli.main import main
from tests.plans import TINY, canonical_plans, write_plan

UI = Path(__file__).parents[1] / "ui"


@pytest.fixture
def faulty(tmp_path: Path) -> list[str]:
    """The plans of tests/ui, beside the models."""
    return [str(write_plan(tmp_path, name=path.name, text=path.read_text())) for path in UI.glob("*.plan")]


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) in (0, 1)
    return capsys.readouterr().out


def validator(capsys: pytest.CaptureFixture[str], document: str) -> jsonschema.Draft202012Validator:
    schema = json.loads(output(capsys, "schema", document))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def artifact(folder: Path, plan: Path) -> Any:
    target = folder / f"{plan.stem}.json"
    assert main(["compile", str(plan), "-o", str(target)]) == 0
    return json.loads(target.read_text())


def of_known_steps() -> list[Path]:
    """The plans whose steps do not wait for their data to be prepared."""
    return [plan for plan in canonical_plans() if " epochs" not in plan.read_text(encoding="utf-8")]


@pytest.mark.sampled(every=20)
@pytest.mark.parametrize("plan", of_known_steps(), ids=lambda plan: plan.stem)
def test_artifacts_are_valid(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validator(capsys, "artifact").validate(artifact(tmp_path, plan))


@pytest.mark.parametrize(
    "fault",
    [
        {"surplus": 1},
        {"format_version": "1"},
        {"graph": {}},
        {"overrides": "mesh.tp=2"},
    ],
)
def test_an_artifact_with_a_fault_is_not(
    fault: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = artifact(tmp_path, write_plan(tmp_path, text=TINY))
    assert not validator(capsys, "artifact").is_valid(document | fault)


def test_an_op_that_no_planc_has_is_not_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = artifact(tmp_path, write_plan(tmp_path, text=TINY))
    document["graph"]["setup"][0]["op"] = "mesh.melt"
    assert not validator(capsys, "artifact").is_valid(document)


def test_findings_of_every_faulty_plan_are_valid(
    faulty: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = output(capsys, "check", *faulty, "--output-format", "json")
    validator(capsys, "diagnostics").validate(json.loads(found))
    entries = json.loads(found)["diagnostics"]
    assert all(any(entry[part] for entry in entries) for part in ("labels", "notes", "help", "fix"))


def test_findings_line_by_line_are_valid(faulty: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "check", *faulty, "--output-format", "json-lines").splitlines()
    schema = validator(capsys, "diagnostics").schema
    assert len(lines) > 10
    for line in lines:
        jsonschema.Draft202012Validator(schema["$defs"]["diagnostic"]).validate(json.loads(line))


def test_differences_are_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{TINY}\nexpect {{\n  gradient_accumulation == 1\n  peak_memory < 6 MiB\n}}\n"
    plan = str(write_plan(tmp_path, text=text))
    schema = validator(capsys, "diff")
    for settings in ((), ("mesh.tp=8",), ("mesh.tp=1", "mesh.dp_shard=1"), ("train.tokens_per_step=512",)):
        words = [word for setting in settings for word in ("--set", setting)]
        found = json.loads(output(capsys, "diff", plan, plan, *words, "--output-format", "json"))
        schema.validate(found)
        assert bool(found["changes"]) == bool(settings)


def test_a_difference_with_a_fault_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(write_plan(tmp_path, text=TINY))
    words = ["diff", plan, plan, "--set", "mesh.tp=4", "--output-format", "json"]
    schema = validator(capsys, "diff")
    for key, value in (("group", "speed"), ("action", "~"), ("old", 2), ("surplus", "")):
        found = json.loads(output(capsys, *words))
        found["changes"][0][key] = value
        assert not schema.is_valid(found), key
