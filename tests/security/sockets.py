"""What a tree of processes listens on, as the kernel tells it while they run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.launch.processes import LAUNCHER_VARIABLES, ROOT
from tests.patience import WAIT_SECONDS

_LISTENS = "0A"
_LOOPBACKS = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: whose, by the program's arguments, and whether only this machine reaches it."""

    program: str
    is_loopback: bool


def listeners_of(
    commands: Sequence[Sequence[str]], *, environments: Sequence[Mapping[str, str]]
) -> tuple[list[int], set[Listener]]:
    """The exit codes of commands that run together, and all that they and their children listened on."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    common = {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(command, env=common | environment, stdout=subprocess.DEVNULL)
        for command, environment in zip(commands, environments, strict=True)
    ]
    found: set[Listener] = set()
    deadline = time.monotonic() + WAIT_SECONDS
    while any(process.poll() is None for process in started):
        assert time.monotonic() < deadline, "they do not end"
        addresses = dict(_listening())
        for process in started:
            found.update(listener for pid in _tree(process.pid) for listener in _of(pid, addresses))
        time.sleep(0.02)
    return [process.returncode for process in started], found


def _listening() -> Iterator[tuple[str, str]]:
    """The address of each listening socket, by its inode."""
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text(encoding="utf-8").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                yield fields[9], fields[1].partition(":")[0]


def _tree(pid: int) -> Iterator[int]:
    yield pid
    # A process may end meanwhile.
    with contextlib.suppress(OSError):
        for path in Path("/proc", str(pid), "task").glob("*/children"):
            for child in path.read_text(encoding="utf-8").split():
                yield from _tree(int(child))


def _of(pid: int, addresses: Mapping[str, str]) -> Iterator[Listener]:
    with contextlib.suppress(OSError):
        program = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
        for descriptor in Path("/proc", str(pid), "fd").iterdir():
            with contextlib.suppress(OSError):
                inode = os.readlink(descriptor).removeprefix("socket:[").removesuffix("]")
                if inode in addresses:
                    yield Listener(program, addresses[inode] in _LOOPBACKS)
