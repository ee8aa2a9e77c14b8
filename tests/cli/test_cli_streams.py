"""A command whose output nobody can take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.plans import PLANS

COMMAND = f"{sys.executable} -m planc check {PLANS / 'quickstart.plan'}"


def shell(redirection: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        f"{COMMAND} {redirection}", shell=True, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_full_device_is_said_in_words() -> None:
    assert Path("/dev/full").exists()
    outcome = shell("> /dev/full")
    assert (outcome.returncode, outcome.stderr) == (
        2,
        "planc: error: cannot write the output: No space left on device\n",
    )


def test_closed_streams_change_no_exit_code() -> None:
    assert shell(">&-").returncode == 0
    assert shell(">&- 2>&-").returncode == 0


def test_a_reader_that_leaves_is_no_error() -> None:
    outcome = shell("| true")
    assert (outcome.returncode, outcome.stderr) == (0, "")
