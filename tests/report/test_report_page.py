"""A page is one safe file: small, soon made, with nothing to load, and whatever a plan has stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import planc
from planc.api import check_plan
from planc.diff.side import side_of
from planc.report.charts import MAX_POINTS, Curve, thin
from planc.report.html import element, markup
from planc.report.page import Section, page
from planc.report.report import plan_page
from tests.plans import PLANS, QUICKSTART, TINY, write_plan
from tests.report.conftest import Write
from tests.report.reading import Read, read

HOSTILE = "</script></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e"
GOLDEN = Path(__file__).parent / "quickstart.outline"


def test_the_outline_of_a_page(
    write: Write, match_golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PLANS)
    text = write("report", "quickstart.plan", "--gpu", "h100", "--against", "launch-dp4.plan")
    match_golden(GOLDEN, "".join(f"{line}\n" for line in read(text).outline))


def test_the_largest_plan_has_a_small_page_within_a_second() -> None:
    path = PLANS / "llama-3.1-405b.plan"
    side = side_of(check_plan(path), name=str(path))
    assert side is not None
    started = time.process_time()
    text = plan_page(side)
    assert time.process_time() - started < 1.0
    assert len(text.encode()) < 2 * 10**6


def policy_of(found: Read) -> dict[str, list[str]]:
    contents = [value for tag, name, value in found.attributes if (tag, name) == ("meta", "content")]
    (policy,) = [one for one in contents if "default-src" in one]
    return {name: values for name, *values in (part.split() for part in policy.split("; "))}


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_allows_only_the_page_itself(write: Write) -> None:
    text = write("report", str(QUICKSTART))
    found = read(text)
    policy = policy_of(found)
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == ["'none'"]
    (script,) = found.scripts
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert (policy["script-src"], policy["style-src"]) == ([digest(script)], [digest(style)])


def test_nothing_is_loaded(write: Write, run_folder: Path) -> None:
    for text in (
        write("report", str(QUICKSTART), "--gpu", "h100"),
        write("report", str(run_folder)),
        write("diff", str(PLANS / "launch-dp4.plan"), str(QUICKSTART), "--output-format", "html"),
    ):
        found = read(text)
        addresses = [
            value for _, name, value in found.attributes if name in ("href", "src", "action", "data")
        ]
        assert all(one.startswith("#") for one in addresses)
        names = {name for _, name, _ in found.attributes}
        assert names & {"style", "srcset", "background"} == set()
        assert not any(name.startswith("on") for name in names)


def test_what_is_not_known_is_said(write: Write, run_folder: Path) -> None:
    assert (
        "the plan names no device. Set hardware.gpu, or pass --gpu."
        in read(write("report", str(QUICKSTART))).text
    )
    assert "a compiled plan names no device" in read(write("report", str(run_folder))).text


def test_context_parallelism_is_in_the_layers(write: Write) -> None:
    assert "attention ring: send over cp" in read(write("report", str(PLANS / "llama-3.1-8b-ring.plan"))).text


def test_a_page_without_curves_has_no_script(write: Write) -> None:
    text = write("diff", str(PLANS / "launch-dp4.plan"), str(QUICKSTART), "--output-format", "html")
    assert read(text).scripts == []
    assert "script-src" not in text and "uPlot" not in text


def test_the_license_of_the_chart_library_goes_with_it(write: Write) -> None:
    (script,) = read(write("report", str(QUICKSTART))).scripts
    assert "The MIT License" in script and "Leon Sorokin" in script


def test_the_chart_library_is_the_one_that_its_readme_names() -> None:
    folder = Path(planc.__path__[0]) / "report" / "assets" / "uplot"
    listed = re.findall(r"^\| (\S+) \| ([0-9a-f]{64}) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    assert {name for name, _ in listed} == {path.name for path in folder.iterdir()} - {"README.md"}
    for name, expected in listed:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected


def test_text_never_becomes_markup() -> None:
    shown = markup(element("p", HOSTILE, title=HOSTILE), HOSTILE)
    found = read(page(HOSTILE, heading=shown, sections=[Section("x", HOSTILE, shown)]))
    assert found.scripts == []
    assert not any(tag == "img" or name == "onerror" for tag, name, _ in found.attributes)
    assert ("p", "title", HOSTILE.replace("\u202e", "\\u202e")) in found.attributes
    assert found.text.count("alert(1)") >= 5
    assert "\u202e" not in found.text and "\\u202e" in found.text


def test_a_hostile_plan_is_text(tmp_path: Path, write: Write) -> None:
    hostile = "data/</script><script>alert(1)</script>*.txt"
    plan = write_plan(tmp_path, name="x<script>.plan", text=TINY, edits=[("data/*.txt", hostile)])
    found = read(write("report", str(plan)))
    assert len(found.scripts) == 1 and "alert(1)" not in found.scripts[0]
    assert hostile in found.text and "x<script>" in found.text


def test_a_hostile_run_is_text(run_folder: Path, write: Write) -> None:
    lines = (
        (run_folder / "metrics.jsonl").read_text().replace("held_out", "</script><script>alert(1)</script>")
    )
    (run_folder / "metrics.jsonl").write_text(lines)
    (run_folder / "status.json").write_text(json.dumps({"state": HOSTILE, "error": HOSTILE}))
    found = read(write("report", str(run_folder)))
    assert len(found.scripts) == 1 and "alert(1)" not in found.scripts[0]
    assert found.curves[0]["series"][1]["label"] == "evaluation </script><script>alert(1)</script>"


def test_a_key_of_the_environment_is_not_in_the_page(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    plan = write_plan(tmp_path, text=TINY, edits=[("data/*.txt", "data/hf_0123456789/*.txt")])
    text = write("report", str(plan))
    assert "hf_0123456789" not in text and "data/***/*.txt" in text


def test_long_curves_keep_their_extremes() -> None:
    values = [(step, 1.0 + step % 7 / 100) for step in range(1, 100_001)]
    values[54_321] = (54_322, 99.0)
    values[70_000] = (70_001, float("nan"))
    found = thin(Curve("loss", tuple(values)))
    assert len(found.points) <= MAX_POINTS
    assert (54_322, 99.0) in found.points and 70_001 in dict(found.points)
    assert [*found.points] == sorted(found.points, key=lambda point: point[0])
    assert set(found.points) - {values[70_000]} <= set(values)


def test_short_curves_are_whole() -> None:
    points = tuple((step, float(step)) for step in range(MAX_POINTS))
    assert thin(Curve("loss", points)).points == points
