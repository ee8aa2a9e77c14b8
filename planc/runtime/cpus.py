"""The CPUs of this machine."""

from __future__ import annotations

import os


def num_cpus() -> int:
    """The number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def unsupported_system(command: str) -> str | None:
    """Explain why ranks can't run on this system; None if they can."""
    if os.name == "posix":
        return None
    return f"planc {command} trains a model, which needs Linux or macOS (WSL 2 on Windows)"
