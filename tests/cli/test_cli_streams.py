"""A command whose output nobody can take."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import WAIT_SECONDS
from tests.plans import PLANS

PLAN = shlex.quote(str(PLANS / "quickstart.plan"))
PYTHON = shlex.quote(sys.executable)
COMMAND = f"{PYTHON} -m planc check {PLAN}"


def shell(redirection: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        f"{COMMAND} {redirection}",
        shell=True,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
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


@pytest.mark.parametrize("pipe", ["| true", "2>&1 | true"])
@pytest.mark.parametrize(
    "command", [f"check {PLAN}", f"show {PLAN} --set mesh.nope=1", f"diff {PLAN} {PLAN}"]
)
def test_a_command_whose_reader_leaves_ends_as_by_sigpipe(command: str, pipe: str) -> None:
    """A shell shows the code of `planc check plans | head -1` under pipefail; 1 would mean errors."""
    script = f"{PYTHON} -m planc {command} {pipe}; echo ${{PIPESTATUS[0]}}"
    outcome = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    is_read = "show" in command and "2>&1" not in pipe
    assert outcome.stdout == ("1\n" if is_read else "141\n")
    assert "planc: " not in outcome.stderr and "Traceback" not in outcome.stderr
