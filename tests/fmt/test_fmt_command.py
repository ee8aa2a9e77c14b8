"""`planc fmt`: what it writes, what it leaves alone, what it exits with."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.patience import WAIT_SECONDS
from tests.plans import canonical_plans

UGLY = "mesh{tp=2 # two\n}\n"
NEAT = "mesh {\n  tp = 2  # two\n}\n"
BROKEN = "mesh {\n  tp == = 2\n}\n"


def written(folder: Path, *, name: str = "x.plan", text: str = UGLY) -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    return path


def fmt(*words: str | Path) -> int:
    return main(["fmt", *(str(word) for word in words)])


def give_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_file_is_formatted_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    assert fmt(path) == 0
    assert path.read_text() == NEAT
    assert capsys.readouterr() == ("", f"reformatted {path}\n")
    assert [one.name for one in tmp_path.iterdir()] == ["x.plan"]


def test_a_formatted_file_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, text=NEAT)
    before = path.stat()
    assert fmt(path) == 0
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert capsys.readouterr() == ("", "")


def test_the_mode_of_a_file_stays(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.chmod(0o640)
    assert fmt(path) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    path = written(tmp_path)
    link = tmp_path / "link.plan"
    link.symlink_to(path.name)
    assert fmt(link) == 0
    assert link.is_symlink()
    assert path.read_text() == NEAT


def test_windows_newlines_are_a_change(tmp_path: Path) -> None:
    path = written(tmp_path, text=NEAT.replace("\n", "\r\n"))
    assert fmt(path, "--check") == 1
    assert fmt(path) == 0
    assert path.read_bytes() == NEAT.encode()


def test_check_names_what_would_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ugly, neat = written(tmp_path), written(tmp_path, name="y.plan", text=NEAT)
    assert fmt(neat, ugly, "--check") == 1
    assert capsys.readouterr().out == f"would reformat {ugly}\n"
    assert ugly.read_text() == UGLY


def test_check_of_formatted_files_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert fmt(*canonical_plans(), "--check") == 0
    assert capsys.readouterr() == ("", "")


def test_diff_is_a_patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, text=UGLY.removesuffix("\n"))
    assert fmt(path, "--diff") == 1
    assert path.read_text() == UGLY.removesuffix("\n")
    assert capsys.readouterr().out == (
        f"--- {path}\n+++ {path} (formatted)\n@@ -1,2 +1,3 @@\n"
        "-mesh{tp=2 # two\n-}\n\\ No newline at end of file\n"
        "+mesh {\n+  tp = 2  # two\n+}\n"
    )


def test_a_plan_that_does_not_parse_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, ugly = written(tmp_path, text=BROKEN), written(tmp_path, name="y.plan")
    assert fmt(broken, ugly) == 1
    assert broken.read_text() == BROKEN
    assert ugly.read_text() == NEAT
    out, err = capsys.readouterr()
    assert out == ""
    assert "error[P102]" in err and f"{broken}:2:9" in err


def test_a_missing_file_could_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fmt(tmp_path / "none.plan", written(tmp_path), "--check") == 2
    assert "P100" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
def test_a_read_only_file_could_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    path.chmod(0o444)
    assert fmt(path) == 2
    assert path.read_text() == UGLY
    assert "cannot be written: Permission denied" in capsys.readouterr().err


def test_stdin_goes_to_stdout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    give_stdin(monkeypatch, UGLY.encode())
    assert fmt("-") == 0
    assert capsys.readouterr() == (NEAT, "")


def test_stdin_that_does_not_parse_gives_no_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, BROKEN.encode())
    assert fmt("-") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "<stdin>:2:9" in err


def test_stdin_that_is_no_text_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"a = 1 # \xff\n")
    assert fmt("-") == 1
    assert "P106" in capsys.readouterr().err


def test_stdin_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    assert fmt("-", path) == 2
    assert path.read_text() == UGLY


def test_characters_are_not_escaped_for_an_ascii_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planc", "fmt", "-"],
        input="a=1 # größer\n".encode(),
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=True,
        timeout=WAIT_SECONDS,
    )
    assert done.stdout.decode("utf-8") == "a = 1  # größer\n"
