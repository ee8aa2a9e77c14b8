"""The processors of this machine."""

from __future__ import annotations

import os


def num_cpus() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
