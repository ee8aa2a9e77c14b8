"""`planc new` at a real pseudo-terminal, with answers."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import signals
from tests.patience import patient

ROOT = Path(__file__).parents[2]


def answered(command: Sequence[str], *, typed: str, cwd: Path) -> tuple[int, str]:
    """The exit code of `planc COMMAND`, and what the terminal shows, for what is typed ahead."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "planc", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT)},
        # Ctrl-C reaches the process group of the terminal.
        start_new_session=True,
        preexec_fn=_control,
    )
    os.close(theirs)
    shown = b""
    with patient(process, f"a question, or the end, of `planc {' '.join(command)}` after {typed!r}"):
        for line in typed.splitlines(keepends=True):
            shown += _until_prompt(ours)
            os.write(ours, line.encode())
        while chunk := _read(ours):
            shown += chunk
        os.close(ours)
        code = process.wait()
    return code, shown.decode().replace("\r\n", "\n")


def _control() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Ctrl-C is a SIGINT, which a shell in the background ignores.
    signals.reset()


def _until_prompt(ours: int) -> bytes:
    shown = b""
    while not shown.endswith(b"] "):
        chunk = _read(ours)
        if not chunk:
            return shown
        shown += chunk
    return shown


def _read(ours: int) -> bytes:
    try:
        return os.read(ours, 65536)
    except OSError:  # the process is gone
        return b""
