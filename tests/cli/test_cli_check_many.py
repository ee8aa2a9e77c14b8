"""`planc check` of directories, of stdin, of several plans, and quietly."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.plans import PLANS, TINY, write_plan

BASE = TINY.replace("\ntrain {\n  steps = 10\n}\n", "")
TOP = 'extends "base/b.plan"\n\ntrain {\n  steps = 10\n}\n'
PRESET = 'tensor_parallel "auto" {\n  auto\n}\n'
WRONG = [("steps = 10", "stepz = 10")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two plans, one of them in a subdirectory with a base, an unused preset, and a hidden directory."""
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path, name="a.plan", text=TINY)
    sub = tmp_path / "sub"
    (sub / "base").mkdir(parents=True)
    (sub / "base" / "b.plan").write_text(BASE.replace('"models/', '"../models/'))
    write_plan(sub, name="top.plan", text=TOP)
    (tmp_path / "preset.plan").write_text(PRESET)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.plan").write_text("broken {")
    return tmp_path


def outcome(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["check", *argv])
    return code, capsys.readouterr().out


def test_a_directory_is_all_of_its_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = outcome(capsys, ".")
    lines = out.splitlines()
    assert code == 0, out
    assert [line.split()[0] for line in lines] == ["a.plan", "sub/top.plan", "All"]
    assert lines[-1] == "All 2 plans passed; 2 files skipped as presets and bases"


def test_a_base_is_checked_when_it_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = outcome(capsys, "preset.plan")
    assert code == 1 and "P217" in out


def test_an_included_plan_with_an_error_of_its_own_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(
        folder / "sub", name="base/b.plan", text=TINY, edits=[("tp = 2", "tp = 3"), ('"models', '"../models')]
    )
    write_plan(
        folder / "sub", name="top.plan", text='extends "base/b.plan"\n\nmesh {\n  override tp = 2\n}\n'
    )
    code, out = outcome(capsys, "sub")
    assert code == 1
    assert "sub/base/b.plan" in out and "sub/top.plan passed" in out
    assert out.splitlines()[-1] == "1 of 2 plans passed"


def test_a_preset_with_an_error_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "preset.plan").write_text('tensor_parallel "auto" {\n  "lm_head" -> nonsense\n}\n')
    code, out = outcome(capsys, ".")
    assert code == 1
    assert "preset.plan:2" in out
    assert out.splitlines()[-1] == "2 of 3 plans passed; 1 file skipped as presets and bases"


def test_a_directory_in_a_machine_format(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(folder, name="a.plan", text=TINY, edits=WRONG)
    code, out = outcome(capsys, ".", "--output-format", "json")
    assert code == 1
    assert {finding["file"] for finding in json.loads(out)["diagnostics"]} == {"a.plan"}


def test_a_directory_without_plans_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert f"no .plan file in `{tmp_path}`" in capsys.readouterr().err


def test_several_plans_get_a_line_each_and_a_total(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(folder, name="c.plan", text=TINY)
    code, out = outcome(capsys, "a.plan", "c.plan")
    assert code == 0
    assert [" ".join(line.split()[:2]) for line in out.splitlines()] == [
        "a.plan passed,",
        "c.plan passed,",
        "All 2",
    ]


def test_the_total_counts_what_failed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(folder, name="c.plan", text=TINY, edits=WRONG)
    code, out = outcome(capsys, "a.plan", "c.plan")
    assert code == 1
    assert out.splitlines()[-1] == "1 of 2 plans passed"


def test_every_plan_that_ships_passes_in_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    plans = sorted(str(path) for path in PLANS.glob("launch-*.plan"))
    code, out = outcome(capsys, *plans)
    assert code == 0
    assert len(out.splitlines()) == len(plans) + 1
    assert out.splitlines()[-1] == f"All {len(plans)} plans passed"


def test_quiet_prints_findings_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, "a.plan", "-q") == (0, "")
    assert outcome(capsys, ".", "--quiet") == (0, "")
    write_plan(folder, name="a.plan", text=TINY, edits=WRONG)
    code, out = outcome(capsys, "a.plan", "sub/top.plan", "-q")
    assert code == 1
    assert "P202" in out and "passed" not in out


def test_quiet_fixes_and_formats_without_notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(folder, name="a.plan", text=TINY, edits=WRONG)
    assert main(["check", "a.plan", "--fix", "-q"]) == 0
    (folder / "a.plan").write_text(TINY.replace("  tp = 2", "  tp  =  2"))
    assert main(["fmt", "a.plan", "--check", "-q"]) == 1
    assert main(["fmt", "a.plan", "-q"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert "  tp = 2" in (folder / "a.plan").read_text()


def test_quiet_says_nothing_of_the_environment(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TP_SIZE", "4")
    assert main(["check", "a.plan", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_formatting_takes_a_directory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sub" / "top.plan").write_text(TOP.replace("steps = 10", "steps  =  10"))
    assert main(["fmt", ".", "--check"]) == 1
    assert capsys.readouterr().out == "would reformat sub/top.plan\n"


class Stdin(io.TextIOWrapper):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")


def test_a_plan_on_stdin_starts_at_the_current_directory(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(TINY.encode()))
    code, out = outcome(capsys, "-")
    assert code == 0 and out.startswith("<stdin> passed, plan_hash ")
    monkeypatch.setattr(sys, "stdin", Stdin(TINY.replace("steps = 10", "stepz = 10").encode()))
    code, out = outcome(capsys, "-", "--output-format", "concise")
    assert code == 1 and out.startswith("<stdin>:")


def test_stdin_that_is_not_text_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"\xff\xfe"))
    code, out = outcome(capsys, "-")
    assert code == 1 and "byte 0 is not UTF-8" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-", "a.plan"], "`-` (stdin) can't be combined with other files"),
        (["-", "--fix"], "`-` (stdin) can't be combined with --fix, --diff, --data or --deep"),
        (["-", "--deep"], "`-` (stdin) can't be combined with --fix, --diff, --data or --deep"),
        (["a.plan", "--unsafe-fixes"], "--unsafe-fixes needs --fix or --diff"),
        (["a.plan", "--diff", "--deep"], "--diff can't be combined with --data or --deep"),
    ],
)
def test_options_that_exclude_each_other(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *argv]) == 2
    assert message in capsys.readouterr().err
