"""A test that waits for what never happens fails by name, and no other with it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import signals
from tests.limits import limited
from tests.patience import WAIT_SECONDS, is_within, patient, wait_until

ROOT = Path(__file__).parents[2]


def test_a_wait_without_end_fails_where_it_waits(tmp_path: Path) -> None:
    with (
        (tmp_path / "stacks").open("w") as file,
        pytest.raises(pytest.fail.Exception, match=r"the name: not ended within 0 s; .* last frame"),
        limited("the name", seconds=0.1, trace=file.fileno()),
    ):
        threading.Event().wait()
    assert "test_a_wait_without_end" in (tmp_path / "stacks").read_text()


def test_a_clean_up_that_waits_for_the_same_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.limits._AGAIN_SECONDS", 0.1)
    with (
        (tmp_path / "stacks").open("w") as file,
        pytest.raises(pytest.fail.Exception, match="the name"),
        limited("the name", seconds=0.1, trace=file.fileno()),
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
    ):
        try:
            process.wait()
        finally:
            process.kill()


@pytest.mark.slow
def test_one_that_hears_no_signal_ends_its_process_alone(tmp_path: Path) -> None:
    """As inside a library that waits without returning to Python; xdist starts another process."""
    (tmp_path / "test_suite.py").write_text(
        "import signal, threading\n"
        "def test_deaf():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
        "    threading.Event().wait()\n"
        "def test_sound(): pass\n"
        "def test_waits(): threading.Event().wait()\n"
        "def test_sound_too(): pass\n"
    )
    (tmp_path / "conftest.py").write_text(
        "from tests import limits\n"
        "limits.LIMIT_SECONDS, limits._GRACE_SECONDS = 2.0, 2.0\n"
        "from tests.conftest import pytest_addoption, pytest_configure\n"
        "from tests.conftest import pytest_xdist_make_scheduler\n"
        "from tests.conftest import pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown\n"
    )
    options = ("-n", "1", "--dist", "loadfile", "-rA", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *options, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("PASSED ", "FAILED "))]
    names = sorted((line.split()[0], line.split(" - ")[0].rpartition("::")[2]) for line in verdicts)
    assert names == [
        ("FAILED", "test_deaf"),
        ("FAILED", "test_waits"),
        ("PASSED", "test_sound"),
        ("PASSED", "test_sound_too"),
    ], done.stdout + done.stderr
    assert "Timeout (" in done.stderr and "in test_deaf" in done.stderr


def test_a_process_that_keeps_a_test_waiting_is_named() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with (
        pytest.raises(AssertionError, match="a line of the sleeper: not within 0 s"),
        process,
        patient(process, "a line of the sleeper", seconds=0.2),
    ):
        process.stdout.readline()


def test_what_never_is_so_is_named() -> None:
    with pytest.raises(AssertionError, match="rain: not within 0 s"):
        wait_until(lambda: False, "rain", seconds=0.05)


def test_a_busy_machine_gets_more_time_and_an_idle_one_none() -> None:
    assert is_within(1.0, 2.0)
    assert not is_within(600.0, 2.0)


def test_signals_that_were_ignored_arrive(tmp_path: Path) -> None:
    program = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(600)"
    with signals.ignored():
        process = subprocess.Popen(
            [sys.executable, "-c", program], preexec_fn=signals.reset, stderr=subprocess.PIPE
        )
    with patient(process, "the end by SIGINT"):
        assert b"KeyboardInterrupt" in process.communicate()[1]
