"""The page of several runs: their curves over each other, and what differs between their plans."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.diff.side import Side
from planc.report.run import RunRecord
from planc.report.runs import MAX_DRAWN, Listed, runs_page
from tests.plans import QUICKSTART
from tests.report.conftest import Write, make_run
from tests.report.reading import Read, read

TOKENS_PER_STEP = 4096


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: of 60 steps, of 20 and a failure, and of 60 without evaluations and with another rate."""
    folder = tmp_path_factory.mktemp("sweep")
    make_run(folder / "a")
    shutil.copytree(folder / "a", folder / "b")
    lines = (folder / "a" / "metrics.jsonl").read_text().splitlines()
    (folder / "b" / "metrics.jsonl").write_text("\n".join(lines[:20]) + "\n")
    (folder / "b" / "status.json").write_text(json.dumps({"state": "failed", "exit_code": 5, "step": 20}))
    shutil.copytree(folder / "a", folder / "c")
    plan = str(folder / "c" / "plan.json")
    assert main(["compile", str(QUICKSTART), "-o", plan, "-q", "--set", "optimizer.lr=1e-2"]) == 0
    others = [json.loads(line) for line in lines]
    for one in others:
        one.pop("evaluations", None)
        one["loss"] += 1
    (folder / "c" / "metrics.jsonl").write_text("\n".join(map(json.dumps, others)) + "\n")
    return folder


def titles(page: Read) -> list[str]:
    return [table.caption.partition(":")[0] for table in page.tables if ": " in table.caption]


def test_curves_of_runs_lie_over_each_other_by_step_and_by_tokens(sweep: Path, write: Write) -> None:
    page = read(write("report", str(sweep)))
    assert page.table("Runs, with their last logged values").rows[1:] == [
        ["a", "done", "60 of 120", "0.08333", "0.06667", "1_060"],
        ["b", "failed (5)", "20 of 120", "0.25", "-", "1_020"],
        ["c", "done", "60 of 120", "1.083", "-", "1_060"],
    ]
    assert page.table("1 difference").rows == [
        ["setting", "a", "b", "c"],
        ["optimizer lr", *["0.012"] * 2, "0.01"],
    ]
    found = ["Loss", "Evaluation held_out", "Gradient norm", "Learning rate", "Speed"]
    assert titles(page) == [*found, "Loss", "Evaluation held_out"]
    assert [one["by"] for one in page.curves] == [*["step"] * 5, *["tokens"] * 2]
    loss, evaluation, *_, of_tokens, _ = page.curves
    assert [one["label"] for one in loss["series"]] == ["a", "b", "c"]
    steps, a, b, c = loss["data"]
    assert (steps[-1], a[19], b[19], c[19], b[20]) == (60, 0.25, 0.25, 1.25, None)
    assert of_tokens["data"] == [[step * TOKENS_PER_STEP for step in steps], a, b, c]
    assert evaluation["data"] == [[30, 60], [4 / 30, 4 / 60], [None] * 2, [None] * 2]
    assert "Evaluation held_out; without b, c" in page.text


def test_runs_are_a_document_with_what_differs(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["runs", str(sweep), "--sort", "loss", "--output-format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format_version"] == 1
    assert [(one["name"], one["state"], one["step"], one["steps"], one["loss"]) for one in found["runs"]] == [
        ("a", "done", 60, 120, 5 / 60),
        ("b", "failed (5)", 20, 120, 5 / 20),
        ("c", "done", 60, 120, 5 / 60 + 1),
    ]
    assert [one["differences"] for one in found["runs"]] == [
        {"optimizer lr": value} for value in ("0.012", "0.012", "0.01")
    ]


def test_runs_by_name_have_names_of_their_own(sweep: Path, write: Write, tmp_path: Path) -> None:
    again = shutil.copytree(sweep / "a", tmp_path / "a")
    page = read(write("report", str(sweep / "a"), str(again)))
    assert [one["label"] for one in page.curves[0]["series"]] == ["1 a", "2 a"]
    assert "Nothing: they run the same plan." in page.text
    page = read(write("report", str(sweep), str(again)))
    names = [f"{sweep.name}/{name}" for name in "abc"]
    assert [one["label"] for one in page.curves[0]["series"]] == [*names, "a"]


def test_what_is_no_run_has_no_page(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "page.html")
    for arguments, part in (
        ([str(sweep / "a"), str(QUICKSTART)], "quickstart.plan is not a run directory"),
        ([str(sweep), "--deep"], "are for one plan or one run"),
        ([str(sweep), str(tmp_path)], "has no runs"),
    ):
        assert main(["report", *arguments, "-o", output]) == 2
        assert part in capsys.readouterr().err
    assert not Path(output).exists()


def test_of_many_runs_the_best_are_drawn(sweep: Path) -> None:
    from planc.cli.commands.runs import list_runs

    ((first, *_), _) = list_runs(sweep)
    side: Side = first.side
    many = [
        Listed(f"r{number}", side, RunRecord({}, {"loss": ((1, float(number)),)}, {}, {}, "process"))
        for number in range(MAX_DRAWN + 2)
    ]
    page = read(runs_page(many[::-1], title="many"))
    drawn = [one["label"] for one in page.curves[0]["series"]]
    assert drawn == [f"r{number}" for number in range(MAX_DRAWN)][::-1]
    assert f"the {MAX_DRAWN} runs with the lowest last loss; 2 others omitted" in page.text
    assert len(page.table("Runs, with their last logged values").rows) == MAX_DRAWN + 3
