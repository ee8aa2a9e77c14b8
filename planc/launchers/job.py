"""What is to be started, whatever starts it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planc.launchers.errors import LaunchError
from planc.launchers.nodes import Nodes
from planc.record import record

GRACE_SECONDS = 600
"""More than a save takes. Launchers wait for nothing but the ranks, so that a long time costs none."""
KILL_SECONDS = 30
"""How much longer a scheduler waits than torchrun, which has still to end what is left and to say so."""
_HOST = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\]"
_ENDPOINT = re.compile(rf"(?P<host>{_HOST}):(?P<port>[1-9][0-9]{{0,4}})", re.ASCII)


@record
class Shrinking:
    """What an elastic run may do: go on with as few as `min_nodes`, be started again `max_restarts` times."""

    min_nodes: int
    max_restarts: int


@record
class Job:
    """A run on nodes. `run` is what follows `-m planc.run`: the plan and its options, unquoted."""

    name: str
    nodes: Nodes
    run: tuple[str, ...]
    shrinking: Shrinking | None = None
    """None for a run whose every rank is needed."""
    grace_seconds: int = GRACE_SECONDS
    """How long ranks have to end in, once they are told to."""
    meets_elsewhere: bool = False
    """The place where nodes meet is on no node of the job."""

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
    found = _ENDPOINT.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(text)
    return Endpoint(found["host"], int(found["port"]))


def job_of(
    name: str,
    *,
    nodes: Nodes,
    run: Sequence[str],
    shrinking: Shrinking | None = None,
    grace_seconds: int = GRACE_SECONDS,
) -> Job:
    """The job; LaunchError for arguments that no text can hold."""
    for argument in run:
        if not argument.isprintable():
            raise LaunchError(
                f"{argument!r} has characters that cannot be printed", help="give the file another name"
            )
    return Job(name, nodes, tuple(run), shrinking, grace_seconds)


def run_arguments(plan: str, *, settings: Sequence[str], run_dir: str | None) -> tuple[str, ...]:
    """The words that follow `-m planc.run`."""
    folder = ("--run-dir", run_dir) if run_dir is not None else ()
    return (plan, *(word for text in settings for word in ("--set", text)), *folder)


def require_endpoint(job: Job, endpoint: Endpoint | None) -> None:
    """LaunchError for several nodes that do not know where to meet."""
    if endpoint is None and job.nodes.num_nodes > 1:
        raise LaunchError(
            f"{job.nodes.num_nodes} nodes have to know where to meet",
            help="give --rdzv-endpoint HOST:PORT: the first node's name, and a port that is free there",
        )
