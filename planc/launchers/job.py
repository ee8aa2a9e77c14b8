"""A run to start, for any launcher, and the placement of its ranks on nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planc.devices.hardware import Device
from planc.record import record
from planc.tables import plural


class LaunchError(ValueError):
    """The plan can't be launched as requested; `help` is what to change."""

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


GRACE_SECONDS = 600
"""Longer than a save takes. Launchers wait only until the ranks exit, so a long limit costs nothing."""
KILL_SECONDS = 30
"""The seconds that a scheduler waits longer than torchrun, which ends the remaining ranks and reports."""
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
    """The seconds that ranks may take to exit after a signal."""
    meets_elsewhere: bool = False
    """Whether the rendezvous is outside the job's nodes."""

    @property
    def module(self) -> tuple[str, ...]:
        return ("-m", "planc.run", *self.run)


@record
class Endpoint:
    """The address at which the first node listens for the others."""

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


@record
class Nodes:
    """Nodes with an equal number of ranks each."""

    num_nodes: int
    ranks_per_node: int


def place(
    world_size: int, *, devices_per_node: int | None, device: Device | None, num_nodes: int | None
) -> Nodes:
    """The nodes of `world_size` ranks. The mesh's `devices_per_node` determines their number if it is set.

    Otherwise `num_nodes` does, or else the device's usual number per node. LaunchError if the number is
    unknown, or if the ranks do not fill whole nodes.
    """
    if devices_per_node is not None:
        return _from_mesh(world_size, devices_per_node=devices_per_node, num_nodes=num_nodes)
    most = device.devices_per_node if device else None
    if num_nodes is None:
        if most is None:
            raise LaunchError(
                f"the number of ranks per node is unknown ({world_size} ranks in total)",
                help="pass --nodes N, or set `mesh.devices_per_node`",
            )
        num_nodes = -(-world_size // most)
    if world_size % num_nodes:
        raise LaunchError(
            f"{world_size} ranks do not fill {num_nodes} nodes evenly [P305]",
            help=f"use {_divisors_near(world_size, num_nodes)} nodes",
        )
    ranks = world_size // num_nodes
    if most is not None and ranks > most:
        raise LaunchError(
            f"{plural(num_nodes, 'node')} with {plural(ranks, 'rank')} each, but `hardware.gpu` has "
            f"{plural(most, 'device')} per node",
            help="pass a larger --nodes, or set `mesh.devices_per_node` if your nodes have more",
        )
    return Nodes(num_nodes, ranks)


def _from_mesh(world_size: int, *, devices_per_node: int, num_nodes: int | None) -> Nodes:
    """The nodes of a mesh with `devices_per_node`; a plan that passes the check fills them (P305)."""
    needed = -(-world_size // devices_per_node)
    if num_nodes not in (None, needed):
        raise LaunchError(
            f"{world_size} ranks on nodes with {plural(devices_per_node, 'device')} need "
            f"{plural(needed, 'node')}, not {num_nodes} [P305]",
            help="leave out --nodes, or change `mesh.devices_per_node`",
        )
    return Nodes(needed, world_size // needed)


def _divisors_near(world_size: int, num_nodes: int) -> str:
    """The nearest numbers of nodes that divide `world_size`, as in `2 or 4`."""
    divisors = [number for number in range(1, world_size + 1) if world_size % number == 0]
    below = [number for number in divisors if number < num_nodes][-1:]
    above = [number for number in divisors if number > num_nodes][:1]
    return " or ".join(str(number) for number in (*below, *above))
