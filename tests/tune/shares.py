"""A share of the processors of its own for each rank, by the quota of a control group of Linux.

Where ranks share processors, a rank that waits lends its processor to the others, which a device does not do.
With a quota a rank is never faster than its share. Needs the `cpu` controller of control groups, version 1,
and the right to make groups in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.dist.pool import run_ranks

_CONTROLLER = Path("/sys/fs/cgroup/cpu")
_QUOTA_MICROSECONDS = 1_000
"""The least that the kernel takes: a rank waits for the rest of a short period only."""


@contextmanager
def own_shares(num_ranks: int) -> Iterator[list[Path]]:
    """A group for each rank, which has an equal share of the processors. OSError if none can be made."""
    processors = len(os.sched_getaffinity(0))
    groups = [_CONTROLLER / f"planc-{os.getpid()}-{rank}" for rank in range(num_ranks)]
    try:
        for group in groups:
            group.mkdir()
            period = _QUOTA_MICROSECONDS * num_ranks // processors
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(_QUOTA_MICROSECONDS))
        yield groups
    finally:
        for group in groups:
            if group.exists():
                group.rmdir()


def run_in(
    groups: list[Path], function: Callable[..., Any], num_ranks: int, *args: object, **options: Any
) -> list[Any]:
    """As `run_ranks`, each rank in its group, if there are groups."""
    if not groups:
        return run_ranks(function, num_ranks, *args, **options)
    return run_ranks(_joined, num_ranks, groups, function, *args, **options)


def _joined(
    rank: int, world_size: int, groups: list[Path], function: Callable[..., Any], *args: object
) -> Any:
    (groups[rank] / "cgroup.procs").write_text(str(os.getpid()))
    return function(rank, world_size, *args)
