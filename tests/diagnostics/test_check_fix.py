"""`planc check --fix`, `--diff`, and the formats on the command line."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from planc.cli.main import main
from planc.cli.support import terminal
from planc.diagnostics.formats import FORMATS
from tests.plans import TINY, write_plan

SAFE = [("steps = 10", "stepz = 10")]
UNUSED = [("steps = 10", "steps = 10  # planc: ignore[P707] why")]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TP_SIZE", "DP_SIZE", "CP_SIZE", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_fix_writes_and_reports_what_remains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_plan(tmp_path, text=TINY, edits=[*SAFE, ("tp = 2", "tp = 8")])
    assert main(["check", str(path), "--fix"]) == 1
    out, err = capsys.readouterr()
    assert path.read_text() == TINY.replace("tp = 2", "tp = 8")
    assert "P402" in out and "P202" not in out
    assert err == f"planc: {path}: fixed 1 finding\n"


def test_fix_uncovers_and_fixes_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TINY.replace('"models/tiny-llama"', '"models/tiny-llama"\n  attention = sdpa')
    path = write_plan(tmp_path, text=text, edits=[("attention = sdpa", 'atention = "sdpa"')])
    assert main(["check", str(path), "--fix"]) == 0
    assert path.read_text() == text
    assert "fixed 2 findings" in capsys.readouterr().err


def test_fixed_plan_has_nothing_more_to_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_plan(tmp_path, text=TINY, edits=SAFE)
    main(["check", str(path), "--fix"])
    before = path.stat()
    capsys.readouterr()
    assert main(["check", str(path), "--fix", "--unsafe-fixes"]) == 0
    assert capsys.readouterr().err == ""
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_unsafe_fixes_wait_until_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_plan(tmp_path, text=TINY, edits=UNUSED)
    assert main(["check", str(path), "--fix"]) == 0
    assert "ignore[P707]" in path.read_text()
    assert "1 unsafe fix left: see --unsafe-fixes --diff" in capsys.readouterr().err
    assert main(["check", str(path), "--fix", "--unsafe-fixes"]) == 0
    assert path.read_text() == TINY


@pytest.mark.parametrize("options", [["--diff"], ["--diff", "--fix"]])
def test_diff_writes_nothing_and_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    path = write_plan(tmp_path, text=TINY, edits=SAFE)
    before = path.read_text()
    assert main(["check", str(path), *options]) == 1
    out, err = capsys.readouterr()
    assert path.read_text() == before
    assert out.startswith(f"--- {path}\n+++ {path}\n@@ ")
    assert "\n-  stepz = 10\n+  steps = 10\n" in out
    assert "would fix 1 finding" in err


def test_diff_of_a_clean_plan_is_empty_and_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(write_plan(tmp_path, text=TINY)), "--diff"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_diff_is_a_patch_that_gives_what_fix_writes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    newline: str,
    end: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_plan(tmp_path)
    text = TINY.rstrip("\n").replace("steps = 10\n}", "stepz = 10 }") + end
    path.write_bytes(text.replace("\n", newline).encode())
    assert main(["check", "x.plan", "--diff"]) == 1
    patch = capsys.readouterr().out
    other = tmp_path / "patched"
    other.mkdir()
    (other / "x.plan").write_bytes(path.read_bytes())
    subprocess.run(["git", "apply", "-p0"], input=patch.encode(), cwd=other, check=True)
    assert main(["check", "x.plan", "--fix"]) == 0
    assert (other / "x.plan").read_bytes() == path.read_bytes()
    assert path.read_bytes() == text.replace("stepz", "steps").replace("\n", newline).encode()


def test_fix_never_touches_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_plan(tmp_path, text=TINY)
    assert main(["check", str(path), "--fix", "--unsafe-fixes", "--set", "train.stepz=5"]) == 1
    assert path.read_text() == TINY
    assert "fixed" not in capsys.readouterr().err


def test_fix_keeps_permissions_and_links(tmp_path: Path) -> None:
    path = write_plan(tmp_path, text=TINY, edits=SAFE)
    path.chmod(0o640)
    link = tmp_path / "link.plan"
    link.symlink_to(path)
    assert main(["check", str(link), "--fix"]) == 0
    assert link.is_symlink()
    assert path.read_text() == TINY
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(child.name for child in tmp_path.iterdir()) == ["link.plan", "models", "x.plan"]


def test_fix_of_what_cannot_be_read_is_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "no.plan"), "--fix"]) == 2
    assert main(["check", str(tmp_path / "no.plan"), "--diff"]) == 2
    assert "P100" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--unsafe-fixes"], ["--diff", "--output-format", "json"]])
def test_options_that_say_nothing_are_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert main(["check", str(write_plan(tmp_path, text=TINY)), *options]) == 2
    assert "planc: error: --" in capsys.readouterr().err


def test_fix_leaves_machine_formats_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_plan(tmp_path, text=TINY, edits=[*SAFE, ("tp = 2", "tp = 8")])
    assert main(["check", str(path), "--fix", "--output-format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {entry["code"] for entry in document["diagnostics"]} == {"P402"}


@pytest.mark.parametrize("name", [listed.name for listed in FORMATS])
def test_several_plans_are_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path, name="a.plan", text=TINY, edits=SAFE)
    write_plan(tmp_path, name="b.plan", text=TINY, edits=SAFE)
    assert main(["check", str(tmp_path / "a.plan"), "./b.plan", "--output-format", name]) == 1
    out = capsys.readouterr().out
    assert out.count("unknown key") >= 2
    assert "a.plan" in out and "b.plan" in out
    if name in ("gitlab", "sarif", "github", "junit"):
        assert str(tmp_path) not in out


class Screen(io.TextIOWrapper):
    """A stream that says that it is a terminal."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize(
    ("variable", "value", "color"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False), ("TERM", "xterm", True)],
)
def test_color_is_for_terminals_whose_owner_wants_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, color: bool
) -> None:
    monkeypatch.setenv(variable, value)
    assert terminal.wants_color(Screen()) is color
    assert terminal.wants_color(Screen(is_terminal=False)) is False


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("", None), ("0", None), ("x", None)])
def test_width_is_the_terminals(monkeypatch: pytest.MonkeyPatch, columns: str, width: int | None) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal.terminal_width(Screen()) == width
    assert terminal.terminal_width(Screen(is_terminal=False)) is None


def test_width_of_a_real_terminal_is_what_it_says() -> None:
    primary, secondary = os.openpty()
    with os.fdopen(primary, "rb", buffering=0), os.fdopen(secondary, "w") as stream:
        subprocess.run(["stty", "cols", "72", "rows", "20"], stdin=stream, check=True)
        assert terminal.terminal_width(stream) == 72


BASE = TINY.replace("param size: int = 2\n", "").replace("dp_shard = size", "dp_shard = 2")
TOP = 'extends "base/b.plan"\n\ntrain {\n  override steps = 20\n}\n'


def write_pair(folder: Path, *, top: str = TOP, base: str = BASE) -> tuple[Path, Path]:
    """A plan and the base that it extends, in a folder of its own."""
    path = write_plan(folder, text=top)
    (folder / "base").mkdir()
    other = folder / "base" / "b.plan"
    other.write_text(base.replace('"models/tiny-llama"', '"../models/tiny-llama"'))
    return path, other


def test_fix_writes_into_included_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, base = write_pair(
        tmp_path,
        top=TOP.replace("train {", "trian {"),
        base=BASE.replace("micro_batch", "micro_bach"),
    )
    assert main(["check", str(path), "--fix"]) == 0
    assert path.read_text() == TOP
    assert "micro_batch = 1" in base.read_text()
    err = capsys.readouterr().err
    assert err == f"planc: {path}: fixed 1 finding\nplanc: {base}: fixed 1 finding\n"


def test_diff_of_included_files_names_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, base = write_pair(tmp_path, base=BASE.replace("micro_batch", "micro_bach"))
    before = base.read_text()
    assert main(["check", str(path), "--diff"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"--- {base}\n+++ {base}\n")
    assert err.startswith(f"planc: {base}: would fix 1 finding\n")
    assert base.read_text() == before


def test_fix_keeps_line_ends_of_included_files(tmp_path: Path) -> None:
    path, base = write_pair(tmp_path, base=BASE.replace("micro_batch", "micro_bach"))
    before = base.read_text()
    base.write_bytes(before.replace("\n", "\r\n").encode())
    assert main(["check", str(path), "--fix"]) == 0
    assert base.read_bytes() == before.replace("micro_bach", "micro_batch").replace("\n", "\r\n").encode()


def test_a_pattern_of_an_included_file_may_be_for_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, base = write_pair(tmp_path, base=BASE.replace('"model.layers.*"', '"model.layesr.*"'))
    assert main(["check", str(path), "--fix"]) == 1
    assert "model.layesr" in base.read_text()
    assert f"planc: {base}: 1 unsafe fix left: see --unsafe-fixes --diff" in capsys.readouterr().err
    assert main(["check", str(path), "--fix", "--unsafe-fixes"]) == 0
    assert '"model.layers.*"' in base.read_text()


def test_a_template_is_neither_applied_nor_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_plan(tmp_path, text=TINY, edits=[("  micro_batch = 1\n", "")])
    before = path.read_text()
    assert main(["check", str(path), "--fix", "--unsafe-fixes"]) == 1
    out, err = capsys.readouterr()
    assert path.read_text() == before
    assert err == ""
    assert "  + " in out and "display-only fix" in out


@pytest.mark.parametrize("name", ["json", "json-lines", "sarif"])
def test_programs_are_told_that_a_fix_is_a_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = write_plan(tmp_path, text=TINY, edits=[("  micro_batch = 1\n", "")])
    assert main(["check", str(path), "--output-format", name]) == 1
    out = capsys.readouterr().out
    assert "display-only" in out
    assert "micro_batch = <" in out
