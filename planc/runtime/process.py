"""This process's launch: torchrun's environment, read strictly. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from planc.graph.graph import Graph
from planc.graph.ops import ResumeCheckpoint, SaveCheckpoint
from planc.runtime.errors import ExitCode, RunError
from planc.tables import plural

_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
VARIABLES = (*_TORCHRUN, "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The variables that `read_launch` reads and a user may set."""


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's place among all processes. `address` and `port` are None for a single process.

    `agent_hosts_store` is true if torchrun's agent already listens on the port. `local_world_size` is None
    if the launcher does not set the number of processes on this machine. `num_before` counts the runs of this
    process before this one: each meets under keys of its own.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    address: str | None = None
    port: int | None = None
    agent_hosts_store: bool = False
    local_world_size: int | None = None
    num_before: int = 0

    @property
    def is_one_machine(self) -> bool:
        """Whether all processes are known to be on this machine."""
        return self.local_world_size == self.world_size


def read_launch(environment: Mapping[str, str]) -> Launch:
    """The launch that the environment describes; RunError if it is incomplete or invalid."""
    given = [name for name in _TORCHRUN if name in environment]
    if not given:
        return Launch()
    missing = [name for name in _TORCHRUN if name not in environment]
    if missing:
        raise RunError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} set, "
            f"but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not",
            help="start with torchrun, which sets all three, or set none for a single process",
        )
    rank, world_size, local_rank = (_count(environment, name) for name in _TORCHRUN)
    if not 0 <= rank < world_size:
        raise RunError(f"RANK = {rank} is outside WORLD_SIZE = {world_size}", help="ranks count from 0")
    _require_local_world(environment, local_rank=local_rank, world_size=world_size)
    if world_size == 1:
        return Launch()
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise RunError(f"{name} is not set", help="torchrun sets it; with other launchers, export it")
    port = _count(environment, "MASTER_PORT")
    if not 0 < port < 65536:
        free = "torchrun finds a free port with --standalone, not with --master-port 0"
        raise RunError(f"MASTER_PORT = {port} is not a port", help="ports are 1 to 65535" if port else free)
    agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    local = _count(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else None
    return Launch(rank, world_size, local_rank, environment["MASTER_ADDR"], port, agent, local)


def is_under_torchrun(environment: Mapping[str, str]) -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in environment


def names_devices(environment: Mapping[str, str]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES names devices: a run that finds none must not continue without them."""
    return environment.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1", "NoDevFiles")


def needs_shared_folder(graph: Graph) -> bool:
    """Whether all ranks read or write in the run directory, rather than rank 0 alone."""
    return any(isinstance(op, ResumeCheckpoint | SaveCheckpoint) for op in graph.ops())


def require_world_size(launch: Launch, *, wanted: int, mesh: str, start_with: str) -> None:
    """RunError unless as many processes were started as the mesh has ranks."""
    if launch.world_size == wanted:
        return
    was = "1 process was" if launch.world_size == 1 else f"{launch.world_size} processes were"
    raise RunError(
        f"the mesh {mesh} needs {plural(wanted, 'process', 'processes')}, but {was} started",
        help=f"start it with: {start_with}",
    )


def _require_local_world(environment: Mapping[str, str], *, local_rank: int, world_size: int) -> None:
    """RunError if LOCAL_WORLD_SIZE, which is optional, does not cover this rank or fit the world size."""
    if "LOCAL_WORLD_SIZE" not in environment:
        return
    local = _count(environment, "LOCAL_WORLD_SIZE")
    if local_rank >= local:
        text = f"LOCAL_RANK = {local_rank} is outside LOCAL_WORLD_SIZE = {local}"
        raise RunError(text, help="local ranks count from 0 on each machine")
    if local > world_size:
        text = f"LOCAL_WORLD_SIZE = {local} is more than WORLD_SIZE = {world_size}"
        raise RunError(text, help="LOCAL_WORLD_SIZE counts the processes on this machine only")


def _count(environment: Mapping[str, str], name: str) -> int:
    value = environment[name]
    if not _COUNT.fullmatch(value):
        raise RunError(f"{name} = {value!r} is not a number", help="write plain digits", code=ExitCode.INPUT)
    return int(value)
