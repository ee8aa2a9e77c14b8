"""Commands to continue with after a command has written a plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planc.launchers.torchrun import on_one_node


def next_commands(plan: Path, *, devices: int, node: int) -> Iterator[str]:
    """The commands that check, start and verify a plan for `devices` in nodes of `node`."""
    yield f"planc check {plan}"
    if devices == node:
        yield on_one_node(devices, (str(plan),))
    else:
        yield f"planc launch {plan} --rdzv-endpoint HOST:29500     (prints torchrun for every node)"
    yield f"planc verify {plan}     (a small twin, on CPUs, against one process)"
