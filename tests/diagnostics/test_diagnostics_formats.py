"""What findings look like to programs."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from findings import ERROR, WARNING, everything, plan_findings, report, span

import planc.diagnostics.formats
from planc.diagnostics import Severity, in_order
from planc.diagnostics.formats import FORMATS
from planc.diagnostics.github import render_github
from planc.diagnostics.gitlab import render_gitlab
from planc.diagnostics.junit import render_junit
from planc.diagnostics.machine import render_json, render_json_lines
from planc.diagnostics.report import Report

NASTY = "a\x1b[31mb\nc\u202ed\ud800\0"


def test_formats_are_those_that_are_promised() -> None:
    names = [listed.name for listed in FORMATS]
    assert names == ["concise", "json", "json-lines", "github", "gitlab", "junit", "sarif"]


@pytest.mark.parametrize("listed", FORMATS, ids=lambda listed: listed.name)
def test_every_format_mentions_every_finding(listed: planc.diagnostics.formats.Format) -> None:
    shown = listed.render(report(*everything()))
    for diagnostic in everything():
        assert shown.count(diagnostic.code.code) >= 1
        assert diagnostic.primary.text.replace("%", "%25" if listed.name == "github" else "%") in shown


@pytest.mark.parametrize("listed", FORMATS, ids=lambda listed: listed.name)
def test_no_format_passes_on_what_steers_a_terminal(listed: planc.diagnostics.formats.Format) -> None:
    shown = listed.render(report(ERROR.at(span(1, 1, 2), NASTY, notes=(NASTY,), help=NASTY)))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", shown)


@pytest.mark.parametrize("listed", FORMATS, ids=lambda listed: listed.name)
def test_every_format_ends_its_last_line(listed: planc.diagnostics.formats.Format) -> None:
    assert listed.render(report(*everything())).endswith("\n")


def test_findings_stand_in_the_order_of_the_text() -> None:
    later, earlier = ERROR.at(span(2, 1, 2)), WARNING.at(span(1, 2, 3))
    other = ERROR.at(span(10, 1, 2, file="a.plan"))
    assert in_order([later, earlier, other]) == (other, earlier, later)


def test_findings_at_one_place_keep_their_order() -> None:
    pair = (WARNING.at(span(1, 1, 2)), ERROR.at(span(1, 1, 2)))
    assert in_order(pair) == pair


def test_json_lines_are_the_diagnostics_of_the_document() -> None:
    lines = render_json_lines(everything()).splitlines()
    assert [json.loads(line) for line in lines] == json.loads(render_json(everything()))["diagnostics"]


def test_json_has_every_promised_key() -> None:
    document = json.loads(render_json(everything()))
    assert document["summary"] == {"error": 2, "warning": 1, "note": 1}
    promised = {"code", "severity", "message", "file", "line", "column", "end_line", "end_column"}
    for entry in document["diagnostics"]:
        assert promised | {"labels", "notes", "help", "fix"} <= entry.keys()


def test_github_escapes_what_would_end_a_command() -> None:
    (line,) = render_github(report(ERROR.at(span(1, 1, 3), "100%: a,\nb"))).splitlines()
    head, _, data = line.removeprefix("::").partition("::")
    assert head == "error title=planc P202 unknown-key,file=plans/x.plan,line=1,endLine=1,col=1,endColumn=3"
    assert data == "unknown key: 100%25: a,\ufffdb"


def test_github_escapes_names_of_files() -> None:
    plan = plan_findings(ERROR.at(span(1, 1, 2, file="a,b:c%.plan")), file="a,b:c%.plan")
    assert "file=a%2Cb%3Ac%25.plan," in render_github(Report((plan,)))


def test_github_knows_three_severities() -> None:
    commands = [line.split()[0] for line in render_github(report(*everything())).splitlines()]
    assert commands == ["::error", "::warning", "::notice", "::error"]


def test_github_gives_no_columns_for_several_lines() -> None:
    line = render_github(report(everything()[1]))
    assert "line=1,endLine=2::" in line


def test_github_shows_a_finding_on_a_setting_at_the_plan() -> None:
    line = render_github(report(everything()[3]))
    assert (
        line
        == "::error title=planc P202 unknown-key,file=plans/x.plan::--set:1:6: unknown key: no such key\n"
    )


def gitlab(*args: object, text: str = "ab\ncd\n") -> list[dict[str, object]]:
    entries: list[dict[str, object]] = json.loads(render_gitlab(report(*args, text=text)))  # type: ignore[arg-type]
    return entries


def test_gitlab_has_what_its_schema_requires() -> None:
    entries = gitlab(*everything())
    assert [entry["severity"] for entry in entries] == ["major", "minor", "info", "major"]
    assert entries[0]["location"] == {"path": "plans/x.plan", "lines": {"begin": 1, "end": 1}}
    assert entries[3]["location"] == {"path": "plans/x.plan", "lines": {"begin": 1}}
    for entry in entries:
        assert entry.keys() == {"description", "check_name", "fingerprint", "severity", "location"}


def test_gitlab_fingerprint_stays_when_the_line_moves() -> None:
    (before,) = gitlab(ERROR.at(span(1, 1, 3), "x"))
    (after,) = gitlab(ERROR.at(span(3, 1, 3), "x"), text="\n\nab\n")
    assert before["fingerprint"] == after["fingerprint"]
    assert before["location"] != after["location"]


@pytest.mark.parametrize(
    "other",
    [WARNING.at(span(1, 1, 3), "x"), ERROR.at(span(2, 1, 3), "x"), ERROR.at(span(1, 1, 3), "y")],
    ids=["code", "line", "label"],
)
def test_gitlab_fingerprint_tells_findings_apart(other: object) -> None:
    first, second = gitlab(ERROR.at(span(1, 1, 3), "x"), other)
    assert first["fingerprint"] != second["fingerprint"]


def test_gitlab_fingerprints_are_unique() -> None:
    found = gitlab(*(ERROR.at(span(line, 1, 3), "x") for line in (1, 2, 3)), text="ab\nab\nab\n")
    assert len({str(entry["fingerprint"]) for entry in found}) == 3


def suites(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_junit_counts_errors_as_failures() -> None:
    root = suites(render_junit(report(*everything())))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "2", "0")
    cases = root.findall("testsuite/testcase")
    assert [case.find("failure") is not None for case in cases] == [True, False, False, True]
    assert [case.find("system-out") is not None for case in cases] == [False, True, True, False]


def test_junit_has_a_passing_case_for_a_clean_plan() -> None:
    (suite,) = suites(render_junit(report()))
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("plans/x.plan", "1", "0")
    assert [list(case) for case in suite] == [[]]


def test_junit_quotes_markup_and_drops_what_xml_forbids() -> None:
    diagnostic = ERROR.at(span(1, 1, 2), '<a> & "b"\x00\x0b\ufffe')
    failure = suites(render_junit(report(diagnostic))).find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message") == 'unknown key: <a> & "b"\ufffd\ufffd\ufffd'


@pytest.mark.parametrize(
    ("root", "file", "path"),
    [
        ("/repository", "plans/x.plan", "plans/x.plan"),
        ("/repository", "./plans/../x.plan", "x.plan"),
        ("/repository", "/repository/x.plan", "x.plan"),
        ("/repository/deep", "../x.plan", "/repository/x.plan"),
        ("/repo", "/repository/x.plan", "/repository/x.plan"),
        ("/", "x.plan", "x.plan"),
        ("", "./x.plan", "x.plan"),
    ],
)
def test_paths_are_those_of_the_repository(root: str, file: str, path: str) -> None:
    assert Report((), root=root).path(file) == path


def test_severities_are_all_mapped() -> None:
    assert {diagnostic.severity for diagnostic in everything()} == set(Severity)
