"""A command at a real pseudo-terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.patience import patient

ROOT = Path(__file__).parents[2]
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def at_terminal(
    command: Sequence[str], *, columns: int, environment: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> str:
    """What `python -m planc COMMAND`, or `python COMMAND` where it starts with `-`, writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    words = command if command[0].startswith("-") else ["-m", "planc", *command]
    unset = ("COLUMNS", "NO_COLOR", "CI")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**inherited, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **(environment or {})},
    )
    os.close(theirs)
    chunks = []
    with patient(process, f"the end of `{' '.join(words)}` at a terminal"):
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the last process that had it open is gone
                break
            if not chunk:
                break
            chunks.append(chunk)
        os.close(ours)
        assert process.wait() in (0, 1)
    return b"".join(chunks).decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """The text without what colors it or moves the cursor."""
    return _CODES.sub("", text)
