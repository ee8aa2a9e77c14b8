"""`planc report` with wrong input, and what it does to files that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_plan
from planc.cli.main import main
from planc.deep_check.cache import save
from planc.hub.user_dirs import cache_dir
from planc.runtime.rehearsal.findings import Measured, Rehearsal, SegmentPeak
from tests.diff.test_diff_sources import commit, start
from tests.plans import PLANS, QUICKSTART, TINY, write_plan
from tests.report.conftest import Write
from tests.report.reading import read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((str(QUICKSTART), "-o", "page.txt"), "page.txt is not an HTML file: name one that ends in .html"),
        ((str(QUICKSTART), "-o", "."), ". is not a regular file"),
        (
            (str(QUICKSTART), "-o", "none/page.html"),
            "none/page.html cannot be written: No such file or directory",
        ),
        (
            (str(QUICKSTART), "-o", f"{QUICKSTART}/page.html"),
            "quickstart.plan/page.html cannot be written: Not a directory",
        ),
        (("runs/none", "-o", "page.html"), "runs/none: No such file or directory"),
        ((".", "-o", "page.html"), ". has no readable plan"),
        ((str(QUICKSTART), "-o", "page.html", "--against", "none.plan"), "none.plan has errors"),
    ],
)
def test_wrong_input_is_an_error_of_one_line(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_checkpoint_is_not_a_run(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = run_folder / "checkpoints" / "step-60"
    step.mkdir(parents=True)
    assert main(["report", str(step), "-o", str(run_folder / "page.html")]) == 2
    assert "is a checkpoint: pass its run directory" in capsys.readouterr().err


def test_a_plan_with_errors_has_findings_and_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path, text=TINY, edits=[("tp = 2", "tp = 3")])
    assert main(["report", str(plan), "-o", str(tmp_path / "page.html")]) == 1
    assert "error[P401]" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_plan_that_does_not_fit_has_a_page_and_the_error(
    tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path, text=f"{TINY}\nhardware {{\n  gpu = device(memory = 1 MiB)\n}}\n")
    assert "does not fit" in read(write("report", str(plan), code=1)).text
    assert "error[P810]" in capsys.readouterr().err


def test_an_earlier_page_is_replaced(tmp_path: Path, write: Write) -> None:
    (tmp_path / "page.html").write_text("an earlier page")
    assert write("report", str(QUICKSTART)).startswith("<!doctype html>")


def test_a_cached_rehearsal_is_shown_and_none_is_run(tmp_path: Path, write: Write) -> None:
    plan = write_plan(tmp_path, text=TINY)
    assert "Not rehearsed" in read(write("report", str(plan))).text
    graph = check_plan(plan).graph
    assert graph is not None
    parts = (("activations", 5 * 2**20), ("parameters", 2**20))
    segments = (SegmentPeak("forward", 6 * 2**20, parts, 0), SegmentPeak("loss", 2**20, parts[1:], 0))
    measured = Measured(0, (), segments, 6 * 2**20, 8 * 2**20)
    save(Rehearsal((0,), 4, 2, (), measured), graph=graph, cache_dir=cache_dir())
    page = read(write("report", str(plan)))
    table = page.table("The most memory allocated at once")
    assert table.rows == [["forward", "6.00 MiB"], ["loss", "1.00 MiB"]]
    assert table.bars == [[6 * 2**20], [2**20]]
    assert ["forward", "activations", "5.00 MiB"] in page.table("Rehearsed memory").rows
    assert "8.00 MiB reserved per rank at the peak" in page.text


def test_html_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [str(PLANS / "launch-dp4.plan"), str(QUICKSTART)]
    for options in (["--output-format", "html"], ["-o", "page.html"]):
        assert main(["diff", *plans, *options]) == 2
        assert "--output-format html and -o FILE need each other" in capsys.readouterr().err


def test_a_difference_under_exit_code_has_a_page_too(write: Write) -> None:
    plans = (str(PLANS / "launch-dp4.plan"), str(QUICKSTART))
    assert read(write("diff", *plans, "--exit-code", "--output-format", "html", code=1)).tables


def test_a_comparison_with_a_run_has_the_verdict_of_diff(
    tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is on the checkpoint that the run has saved: here the plan's last step."""
    plan = str(QUICKSTART)
    folder = str(commit(start(tmp_path / "runs" / "x", plan), step=120).parents[1])
    assert main(["diff", folder, plan]) == 0
    verdict = capsys.readouterr().out.splitlines()[1]
    assert verdict.startswith("resume: nothing to train")
    assert verdict in read(write("report", plan, "--against", folder)).text
