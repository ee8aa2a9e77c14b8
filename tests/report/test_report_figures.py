"""A page's figures are those of the text views and of their JSON, for rows, bars and headline numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.figures.views import Known, Recorder
from tests.plans import PLANS, QUICKSTART
from tests.report.conftest import Write
from tests.report.reading import Table, read

NAMES = ("quickstart", "llama-3.1-405b-128-gpus", "launch-cp2-tp2", "mixtral-8x7b", "llama-3.1-8b-ring")


def lines_of(text: str) -> set[str]:
    return {" ".join(line.split()) for line in text.splitlines()}


def strangers(table: Table, lines: set[str]) -> list[str]:
    """Rows of a table that the text view does not have; the header is the page's own."""
    rows = table.rows[1:] if table.rows[0][0] in HEADERS else table.rows
    return [row for row in map(" ".join, rows) if row not in lines]


HEADERS = ("part", "over", "mesh dim", "parameter")


def text_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_a_line_of_the_text_view(
    name: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(PLANS / f"{name}.plan")
    page = read(write("report", plan, "--gpu", "h200"))
    estimate = lines_of(text_of(capsys, "estimate", plan, "--gpu", "h200"))
    captions = ("Memory", "Communication per step, per rank", "Attention", "Work per step")
    captions = (*captions, "Expected time", "A bound")
    tables = [one for one in page.tables if one.caption.startswith(captions) and not one.bars]
    assert len(tables) >= 5
    assert [row for table in tables for row in strangers(table, estimate)] == []
    mesh = lines_of(text_of(capsys, "show", plan, "--mesh"))
    assert strangers(page.table("Mesh dims"), mesh) == []
    layout = lines_of(text_of(capsys, "show", plan, "--layout"))
    assert strangers(page.table("Parameters"), layout) == []
    overview = lines_of(text_of(capsys, "show", plan, "--gpu", "h200"))
    assert strangers(page.table("The plan"), overview) == []


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", NAMES)
def test_bars_are_as_long_as_the_json_has_it(
    name: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(PLANS / f"{name}.plan")
    page = read(write("report", plan, "--gpu", "h200"))
    found = json.loads(text_of(capsys, "estimate", plan, "--gpu", "h200", "--output-format", "json"))
    peak = found["memory"]["peak"]
    memory = page.table("Memory per rank")
    assert [bar for (bar,) in memory.bars] == [
        *(one["num_bytes"] for one in peak["parts"]),
        peak["num_bytes"],
    ]
    assert [row[0] for row in memory.rows] == [*(one["name"] for one in peak["parts"]), "peak"]
    sent = [bar for (bar,) in page.table("Sent per rank").bars]
    total = sum(one["sent_bytes"] for one in found["collectives"])
    assert sent[-1:] == ([total] if total else []) and sum(sent[:-1]) == total
    for caption, key in (("Expected time of a step", "expected"), ("A bound", "bound")):
        table = next(one for one in page.tables if one.caption.startswith(caption) and one.bars)
        bars = {row[0]: bar for row, (bar,) in zip(table.rows, table.bars, strict=True)}
        time = found["time"][key]
        step = time.get("expected_step_seconds") or time["least_step_seconds"]
        assert bars.pop("step") == pytest.approx(step)
        assert bars["optimizer"] == pytest.approx(time["optimizer_seconds"])
        if key == "expected":
            assert sum(bars.values()) == pytest.approx(step)
            assert bars["communication"] == pytest.approx(time["exposed_seconds"])
        else:
            assert bars["network"] == pytest.approx(time["network_seconds"])


def test_the_bound_is_never_drawn_as_the_expectation(write: Write) -> None:
    """They are two tables, and the words of each say which it is."""
    captions = [one.caption for one in read(write("report", str(QUICKSTART), "--gpu", "h100")).tables]
    assert any(one.startswith("Expected time of a step, by") for one in captions)
    assert any("no run takes less. It is not an expectation" in one for one in captions)


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    with pytest.MonkeyPatch.context() as patch:
        yield Recorder(patch)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", NAMES)
def test_the_figures_that_a_page_writes_are_those_of_estimate(
    name: str, recorder: Recorder, tmp_path: Path
) -> None:
    plan, output = str(PLANS / f"{name}.plan"), tmp_path / "page.html"
    known = Known()
    known.add(recorder.command("estimate", plan, "--gpu", "h200"))
    known.add(recorder.command("show", plan, "--gpu", "h200"))
    expected = set(known.values)
    view = recorder.command("report", plan, "--gpu", "h200", "-o", str(output))
    known.add(view)
    assert known.disagreements == []
    assert expected - {figure.name for figure, _ in view.figures} <= {"modules_over_tp"}
    written = {(figure.name, str(figure.value)): text for figure, text in view.figures}
    found = read(output.read_text()).figures
    assert found and all(written[name, value] == text for name, value, text in found)


def test_a_difference_has_the_lines_of_the_text_view(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = str(PLANS / "launch-dp4.plan"), str(QUICKSTART)
    page = read(write("diff", old, new, "--output-format", "html"))
    document = json.loads(text_of(capsys, "diff", old, new, "--output-format", "json"))
    text = lines_of(text_of(capsys, "diff", old, new))
    changes = [row for table in page.tables if not table.bars for row in table.rows[1:]]
    assert len(changes) == len(document["changes"])
    assert [row for row in map(" ".join, changes) if row not in text] == []
    peaks = {row[0]: bars for row, bars in zip(page.tables[0].rows, page.tables[0].bars, strict=True)}
    for side, plan in enumerate((old, new)):
        found = json.loads(text_of(capsys, "show", plan, "--memory", "--output-format", "json"))["memory"][
            "peak"
        ]
        assert peaks["peak"][side] == found["num_bytes"]
        parts = {one["name"]: one["num_bytes"] for one in found["parts"]}
        assert {name: bars[side] for name, bars in peaks.items() if name != "peak" and bars[side]} == parts


def test_a_run_has_the_values_of_its_metrics(run_folder: Path, write: Write) -> None:
    page = read(write("report", str(run_folder)))
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    loss, grad_norm, _, speed, memory = page.curves[:5]
    steps = [line["step"] for line in lines]
    held_out = [line["evaluations"][0]["loss"] if "evaluations" in line else None for line in lines]
    assert loss["data"] == [steps, [line["loss"] for line in lines], held_out]
    assert [one["label"] for one in loss["series"]] == ["loss", "evaluation held_out"]
    assert grad_norm["data"][1] == [line["grad_norm"] for line in lines]
    assert speed["data"][1] == [line["tokens_per_second"] for line in lines]
    assert memory["data"][1] == [line["memory_bytes"] / 2**30 for line in lines]
    rows = {row[0]: row[1] for row in page.table("Status").rows}
    assert rows["state"] == "done" and rows["loss"] == "0.08333 at step 60 of 120"
    assert rows["memory"] == "160 MiB at step 60 of 120"
