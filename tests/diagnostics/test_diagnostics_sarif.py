"""SARIF, held against a schema of the part that planc writes, beside this file, and against itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from findings import ERROR, check_text, everything, plan_findings, report, span

from planc.diagnostics.pages import DOCUMENTATION, page
from planc.diagnostics.report import PlanFindings, Report
from planc.diagnostics.sarif import render_sarif

SCHEMA = json.loads((Path(__file__).parent / "sarif.schema.json").read_text(encoding="utf-8"))
UI = sorted((Path(__file__).parents[1] / "ui").glob("*.plan"))


def valid(found: Report) -> dict[str, Any]:
    """The only run of a report, once its document is what SARIF allows."""
    document = json.loads(render_sarif(found))
    jsonschema.validate(document, SCHEMA, jsonschema.Draft202012Validator)
    run: dict[str, Any] = document["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        ids = [related["id"] for related in result.get("relatedLocations", [])]
        assert len(ids) == len(set(ids))
    return run


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", UI, ids=lambda path: path.stem)
def test_real_findings_are_valid(path: Path) -> None:
    checked = check_text(path.read_text(encoding="utf-8"))
    found = PlanFindings("x.plan", checked.diagnostics, checked.sources)
    assert len(valid(Report((found,)))["results"]) == len(checked.diagnostics)


def test_report_without_findings_is_valid() -> None:
    run = valid(report())
    assert run["results"] == run["tool"]["driver"]["rules"] == []


def test_several_plans_are_one_run() -> None:
    other = plan_findings(ERROR.at(span(1, 1, 2, file="y.plan")), file="y.plan")
    run = valid(Report((plan_findings(*everything()), other)))
    assert len(run["results"]) == len(everything()) + 1
    assert run["results"][-1]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "y.plan"


def test_rule_has_the_page_as_its_help() -> None:
    (rule,) = valid(report(everything()[0]))["tool"]["driver"]["rules"]
    assert rule["help"]["markdown"] == page("P202")
    assert rule["helpUri"] == f"{DOCUMENTATION}/errors/P202.html"
    assert (rule["name"], rule["defaultConfiguration"]) == ("unknown-key", {"level": "error"})


def test_result_has_region_related_locations_and_fix() -> None:
    (result,) = valid(report(everything()[0]))["results"]
    region = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 3}
    assert result["locations"][0]["physicalLocation"]["region"] == region
    assert [related["message"]["text"] for related in result["relatedLocations"]] == [
        "here too",
        "--set:1:6: and here",
    ]
    (change,) = result["fixes"][0]["artifactChanges"]
    assert change["replacements"] == [{"deletedRegion": region, "insertedContent": {"text": "xy"}}]
    assert "safe fix" in result["fixes"][0]["description"]["text"]


def test_finding_on_a_setting_stands_at_the_plan_without_region_or_fix() -> None:
    (result,) = valid(report(everything()[3]))["results"]
    assert result["locations"] == [{"physicalLocation": {"artifactLocation": {"uri": "plans/x.plan"}}}]
    assert result["message"]["text"].startswith("--set:1:6: unknown key")
    assert "fixes" not in result


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("a b%ä.plan", "a%20b%25%C3%A4.plan"),
        ("/elsewhere/x.plan", "file:///elsewhere/x.plan"),
        ("\udcff.plan", "%FF.plan"),
    ],
)
def test_paths_are_uris(file: str, uri: str) -> None:
    plan = plan_findings(ERROR.at(span(1, 1, 2, file=file)), file=file)
    (result,) = valid(Report((plan,), root="/repository"))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
