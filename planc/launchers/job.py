"""A run to start, for any launcher."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planc.launchers.errors import LaunchError
from planc.launchers.nodes import Nodes
from planc.record import record

GRACE_SECONDS = 600
"""Longer than a save takes. Launchers wait only until the ranks exit, so a long limit costs nothing."""
KILL_SECONDS = 30
"""How much longer a scheduler waits than torchrun, which ends the remaining ranks and reports."""
_HOST = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\]"
_ENDPOINT = re.compile(rf"(?P<host>{_HOST}):(?P<port>[1-9][0-9]{{0,4}})", re.ASCII)


@record
class Shrinking:
    """The elasticity of a run: it needs at least `min_nodes` and may restart `max_restarts` times."""

    min_nodes: int
    max_restarts: int


@record
class Job:
    """A run on nodes. `run` are the words after `-m planc.run`: the plan and its options, unquoted."""

    name: str
    nodes: Nodes
    run: tuple[str, ...]
    shrinking: Shrinking | None = None
    """None for a run that needs all of its ranks."""
    grace_seconds: int = GRACE_SECONDS
    """How long ranks may take to exit after a signal."""
    meets_elsewhere: bool = False
    """Whether the rendezvous is outside the job's nodes."""

    @property
    def module(self) -> tuple[str, ...]:
        return ("-m", "planc.run", *self.run)


@record
class Endpoint:
    """Where the first node listens for the others."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def read_endpoint(text: str) -> Endpoint:
    """HOST:PORT, an IPv6 address in brackets; ValueError for anything else."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(text)
    return Endpoint(match["host"], int(match["port"]))


def job_of(
    name: str,
    *,
    nodes: Nodes,
    run: Sequence[str],
    shrinking: Shrinking | None = None,
    grace_seconds: int = GRACE_SECONDS,
) -> Job:
    """The job; LaunchError for arguments with unprintable characters."""
    for argument in run:
        if not argument.isprintable():
            raise LaunchError(f"{argument!r} has unprintable characters", help="rename the file")
    return Job(name, nodes, tuple(run), shrinking, grace_seconds)


def run_arguments(plan: str, *, settings: Sequence[str], run_dir: str | None) -> tuple[str, ...]:
    """The words that follow `-m planc.run`."""
    folder = ("--run-dir", run_dir) if run_dir is not None else ()
    return (plan, *(word for text in settings for word in ("--set", text)), *folder)


def require_endpoint(job: Job, endpoint: Endpoint | None) -> None:
    """LaunchError for several nodes without an endpoint."""
    if endpoint is None and job.nodes.num_nodes > 1:
        raise LaunchError(
            f"{job.nodes.num_nodes} nodes need a rendezvous endpoint",
            help="pass --rdzv-endpoint HOST:PORT with the first node's name and a free port on it",
        )
