"""Unexpected failures, classified by the error alone: exit code, summary and help."""

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
"""Messages of Python and libraries if the system refuses to start a thread."""
_COMMUNICATION = ("gloo", "NCCL", "Connection closed", "Timed out", "timed out")
_REQUESTED = re.compile(r"tried to allocate ([\d.]+) ?(\w*)", re.IGNORECASE)

_CHATTER = re.compile(
    r"\[\S+\.(?:cc|cpp|h|hpp|cu):\d+\] |\nException raised from .*|\.? This is typically .*", re.DOTALL
)
"""Source lines, stacks of C++, and gloo's advice, which ends with "GLHF!"."""

MEMORY_HELP = (
    "lower data.micro_batch or data.sequence_length, recompute activations with activation_checkpoint, or "
    "shard over more ranks; `planc estimate` shows what takes how much"
)


THREADS_HELP = (
    "raise the limits of processes (`ulimit -u`, the container's pids.max) and of address space "
    "(`ulimit -v`), or lower OMP_NUM_THREADS"
)


def exit_code(error: BaseException) -> ExitCode:
    """The exit code of a run that ends with this error.

    Libraries raise RuntimeErrors for lost peers and for a lack of memory; only their text distinguishes them.
    """
    text = str(error)
    if isinstance(error, MemoryError) or any(sign in text for sign in (*_NO_MEMORY, *_NO_THREAD)):
        return ExitCode.MEMORY
    if isinstance(error, OSError) and error.filename is not None and error.errno != errno.ENOMEM:
        # A server of files may time out too.
        return ExitCode.STORAGE
    if isinstance(error, ConnectionError | TimeoutError) or _is_of_torch_distributed(error):
        return ExitCode.COMMUNICATION
    if isinstance(error, OSError):
        return ExitCode.MEMORY if error.errno == errno.ENOMEM else ExitCode.STORAGE
    return ExitCode.COMMUNICATION if any(sign in text for sign in _COMMUNICATION) else ExitCode.INTERNAL


def _is_of_torch_distributed(error: BaseException) -> bool:
    """Whether torch.distributed raised it, by the name of its base class: torch is not imported here."""
    return any(kind.__name__ == "DistError" for kind in type(error).__mro__)


def lacks_thread(error: BaseException) -> bool:
    """Whether the system refused to start a thread, at a limit of processes or of address space."""
    return any(sign in str(error) for sign in _NO_THREAD)


def memory_help(error: BaseException) -> str:
    """The help for a lack of memory, or of threads."""
    return THREADS_HELP if lacks_thread(error) else MEMORY_HELP


def summary(error: BaseException, *, code: ExitCode) -> str:
    """The error in one line: its type and message, or the size of the failed allocation."""
    if code is ExitCode.MEMORY and lacks_thread(error):
        return f"the system refused to start another thread: {error}"
    if code is ExitCode.MEMORY:
        requested = _REQUESTED.search(str(error))
        if requested is None:
            return f"out of memory: {error}" if str(error) else "out of memory"
        return f"out of memory: could not allocate {requested[1]} {requested[2] or 'bytes'}"
    text = str(error)
    return f"{type(error).__name__}: {_without_chatter(text) if code is ExitCode.COMMUNICATION else text}"


def _without_chatter(text: str) -> str:
    """The text of a library for collectives without its source lines, stacks and wishes."""
    return _CHATTER.sub("", text).strip()
