"""Finds what dead preparers have left, and leaves what a live one writes, on this machine or another.

A host name tells nothing: containers get a new one at each start, and those of a cluster may share one. On
one machine, by the identity of its boot, a preparer that does not hold the lock is dead. Another machine may
not see the lock, so a preparer has a pulse: a file in its directory that it rewrites while it works. Times of
files are not compared, as machines' clocks differ and file systems make times up.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from planc.runtime.files.plain_files import read_bytes, remove, replace

TEMPORARY = ".tmp"
PULSE_NAME = "pulse"
BEAT_SECONDS = 2.0
SILENT_SECONDS = 15.0
"""The longest time without a beat of a live preparer: its process may be busy, or its file system slow."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MAX_PULSE_BYTES = 100

Say = Callable[[str], None]
Lock = Callable[[str], AbstractContextManager[bool]]
"""Takes the lock of a key, without waiting; false if another process has it."""


def new_directory(root: Path, *, key: str) -> Path:
    """A new directory in `root` to prepare the data of a key in: `.tmp-MACHINE-KEY-RANDOM`."""
    directory = root / f"{TEMPORARY}-{_machine()}-{key}-{os.urandom(8).hex()}"
    directory.mkdir()
    return directory


def unfinished(root: Path) -> tuple[Path, ...]:
    """Directories that are being prepared, or whose process died."""
    return tuple(sorted(root.glob(f"{TEMPORARY}-*")))


@contextmanager
def pulse(directory: Path) -> Iterator[None]:
    """Show other machines that this process works in a directory."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                replace(directory / PULSE_NAME, (os.urandom(8).hex().encode(),))
            is_over.wait(BEAT_SECONDS)

    thread = threading.Thread(target=beat, name="planc-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with contextlib.suppress(OSError):
            remove(directory / PULSE_NAME)


def remove_dead(root: Path, *, lock: Lock, say: Say) -> None:
    """Remove the directories of dead preparers of any data in `root`. What can't be removed is reported."""
    with contextlib.ExitStack() as stack:
        here, elsewhere = [], dict[Path, object]()
        for directory in unfinished(root):
            machine, key = _parts(directory)
            if not stack.enter_context(lock(key)):
                continue
            if machine == _machine():
                here.append(directory)
            else:
                elsewhere[directory] = _signs(directory)
        if elsewhere:
            names = ", ".join(map(str, elsewhere))
            say(f"watching for {SILENT_SECONDS:.0f} s whether another machine works in {names}")
            time.sleep(SILENT_SECONDS)
        silent = [one for one, before in elsewhere.items() if _signs(one) == before]
        for directory in (*here, *silent):
            try:
                remove(directory)
            except OSError as error:
                say(f"cannot delete {directory}, which a dead process left: {error.strerror}")


def _parts(directory: Path) -> tuple[str, str]:
    """The machine and the key in a name. An earlier planc wrote a host's name, which may have hyphens."""
    machine, key, _ = directory.name.removeprefix(f"{TEMPORARY}-").rsplit("-", 2)
    return machine, key


def _signs(directory: Path) -> object:
    """Return what changes while a process works in a directory: its pulse, and the sizes of its files."""
    beat = b""
    try:
        with contextlib.suppress(FileNotFoundError):
            beat = read_bytes(directory / PULSE_NAME, max_bytes=_MAX_PULSE_BYTES)
        with os.scandir(directory) as entries:
            return beat, sorted((entry.name, entry.stat(follow_symlinks=False).st_size) for entry in entries)
    except OSError as error:
        return error.errno


def _machine() -> str:
    """Hexadecimal digits of this boot of this machine; random ones where the system has no such identity."""
    try:
        identity = _BOOT.read_bytes()
    except OSError:
        identity = os.urandom(16)
    return hashlib.sha256(identity).hexdigest()[:12]
