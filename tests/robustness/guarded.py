"""Runs planc commands in one process that watches itself: argv lists in, what happened out, as JSON lines.

Each may use the memory of the imports and 500 MB more. Whatever it would write, start or connect to is noted.
One that takes too much of the processor ends this process by SIGPROF, one that waits too long by SIGALRM.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import json
import os
import resource
import signal
import sys
import time
from typing import Any

from planc.cli import main as program
from tests.patience import WAIT_SECONDS

MEMORY_BYTES = 500 * 2**20
HANGS_AFTER_SECONDS = 30.0
"""Of the processor: a busy machine makes no command hang."""
_FORBIDDEN = (
    *("socket.", "subprocess.", "shutil.", "tempfile.", "ftplib.", "http.", "urllib.", "ctypes.", "pty."),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill", "os.putenv"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.ch"),
    *("pickle.find_class", "marshal.loads.user", "webbrowser."),
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Notes events while `is_on`; an audit hook cannot be removed."""

    def __init__(self) -> None:
        self.is_on = False
        self.events: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if is_write or event.startswith(_FORBIDDEN):
            self.events.append(f"{event} {arguments[:2]!r}")


def run(argv: list[str], watch: Watch, *, hangs_after: float) -> dict[str, Any]:
    size_before = _reset_peak()
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    signal.setitimer(signal.ITIMER_PROF, hangs_after)
    signal.setitimer(signal.ITIMER_REAL, WAIT_SECONDS)
    watch.events, watch.is_on = [], True
    started = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = program.main(argv)
    seconds = time.process_time() - started
    watch.is_on = False
    for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
        signal.setitimer(timer, 0)
    return {
        "code": code,
        "out": _written(out),
        "err": _written(err),
        "seconds": seconds,
        "peak_bytes": _memory("VmHWM") - size_before,
        "events": watch.events,
    }


def _reset_peak() -> int:
    """The bytes of memory in use, from which the kernel counts the peak anew."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


def main(hangs_after: float) -> None:
    """Reads argv lists as JSON lines from stdin; what comes first warms up and sets the limits."""
    commands = [json.loads(line) for line in sys.stdin]
    # What a first run imports and compiles is no part of a case.
    importlib.import_module("planc.cli.commands.check")
    for number in (signal.SIGPROF, signal.SIGALRM):
        faulthandler.register(number, chain=True)
    watch = Watch()
    # What Python itself keeps of a module that a command imports late is no write of planc's.
    sys.dont_write_bytecode = True
    sys.addaudithook(watch)
    run(commands[0], watch, hangs_after=HANGS_AFTER_SECONDS)
    used = _memory("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    for argv in commands[1:]:
        print(json.dumps(run(argv, watch, hangs_after=hangs_after)), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
