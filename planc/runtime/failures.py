"""What a failure that nothing foresaw is: told from the error alone."""

from __future__ import annotations

import errno
import re

from planc.runtime.errors import ExitCode

_NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "Cannot allocate memory",
    "bad_alloc",
    "failed to map segment",
)
_NO_THREAD = ("can't start new thread", "Resource temporarily unavailable")
"""What Python and libraries say where the system refuses a thread."""
_COMMUNICATION = ("gloo", "NCCL", "Connection closed", "Timed out", "timed out")
_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(\w*)", re.IGNORECASE)

MEMORY_HELP = (
    "lower data.micro_batch or data.sequence_length, recompute activations with activation_checkpoint, or "
    "shard over more ranks; `planc estimate` tells what takes how much"
)


THREADS_HELP = (
    "raise the limits of processes (`ulimit -u`, the container's pids.max) and of address space "
    "(`ulimit -v`), or lower OMP_NUM_THREADS"
)


def exit_code(error: Exception) -> ExitCode:
    """The code that a run ends with.

    Lost peers and a lack of memory show as RuntimeErrors of libraries; only their text tells them apart.
    """
    text = str(error)
    if isinstance(error, MemoryError) or any(sign in text for sign in (*_NO_MEMORY, *_NO_THREAD)):
        return ExitCode.MEMORY
    if isinstance(error, ConnectionError | TimeoutError):
        return ExitCode.COMMUNICATION
    if isinstance(error, OSError):
        return ExitCode.MEMORY if error.errno == errno.ENOMEM else ExitCode.STORAGE
    return ExitCode.COMMUNICATION if any(sign in text for sign in _COMMUNICATION) else ExitCode.INTERNAL


def lacks_thread(error: Exception) -> bool:
    """Whether the system refused a thread, for the limit of processes or of address space."""
    return any(sign in str(error) for sign in _NO_THREAD)


def memory_help(error: Exception) -> str:
    """What helps against a lack of memory, or of threads."""
    return THREADS_HELP if lacks_thread(error) else MEMORY_HELP


def summary(error: Exception, *, code: ExitCode) -> str:
    """The error in a line: its kind and what it says, or what memory was asked for."""
    if code is ExitCode.MEMORY and lacks_thread(error):
        return f"the system refuses another thread: {error}"
    if code is ExitCode.MEMORY:
        asked = _ASKED.search(str(error))
        if asked is None:
            return f"out of memory: {error}" if str(error) else "out of memory"
        return f"out of memory: it asked for {asked[1]} {asked[2] or 'bytes'} more"
    return f"{type(error).__name__}: {error}"
