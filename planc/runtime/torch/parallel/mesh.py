"""The process group and the device mesh."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import DistError, HashStore, PrefixStore, ProcessGroup, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from planc.graph.ops import InitMesh
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.numerics import ranks_text
from planc.runtime.process import Launch, names_devices
from planc.runtime.ranks.rank_claims import Claim, await_host, await_keys, register
from planc.runtime.ranks.reads import Entry, deviation, deviation_of, digest, majority
from planc.runtime.torch.agreement.agree import refusal
from planc.runtime.torch.agreement.rank_0 import PARTING_TIMEOUT, part
from planc.runtime.torch.parallel.loopback import keep_gloo_inside, listener
from planc.runtime.torch.private import concatenate_meshes, flatten_mesh, set_timeout, split_mesh
from planc.runtime.torch.run import Run
from planc.tables import plural
from planc.vocab import ExpertDim, GroupDim, MeshDim

_STORE_TIMEOUT = timedelta(seconds=60)
_ARRIVAL_TIMEOUT = timedelta(seconds=50)
"""Shorter, so ranks that wait for rank 0 still receive its verdict."""
_NAME_SECONDS = 30.0
"""The longest time until the name of rank 0's machine is known: a cluster's name service may lag behind."""
_NAME_POLL_SECONDS = 0.5


def choose_device(backend: str, launch: Launch) -> torch.device:
    """The device of this rank; RunError if the plan's backend cannot run on this machine."""
    has_cuda = torch.cuda.is_available()
    if backend == "nccl" and not has_cuda:
        raise RunError("the plan uses nccl, but PyTorch sees no CUDA device", help="set mesh.backend = gloo")
    if backend == "auto" and not has_cuda and names_devices(os.environ):
        raise RunError(
            "CUDA_VISIBLE_DEVICES names devices, but PyTorch sees no CUDA device",
            help="unset it, or set mesh.backend = gloo to run on CPUs",
        )
    if backend == "gloo" or not has_cuda:
        return torch.device("cpu")
    if launch.local_rank >= torch.cuda.device_count():
        found = plural(torch.cuda.device_count(), "CUDA device")
        raise RunError(
            f"LOCAL_RANK = {launch.local_rank}, but PyTorch sees {found}",
            help="start at most one process per device",
            is_shared=False,
        )
    device = torch.device("cuda", launch.local_rank)
    torch.cuda.set_device(device)
    return device


def connect(
    launch: Launch,
    *,
    device: torch.device,
    timeout_seconds: int,
    entries: Sequence[Entry],
    claim: Claim | None = None,
) -> Store:
    """Join the process group, once all ranks have shown equal entries; return the rendezvous store.

    The entries are the graph and everything else that a rank has read so far. Their digests are compared in
    the store before any collective, in which ranks with different graphs would hang. RunError if they differ,
    or if a rank does not come. `claim` detects another process with this rank.
    """
    if launch.world_size == 1:
        store: Store = HashStore()
    else:
        patience = min(_ARRIVAL_TIMEOUT, timedelta(seconds=timeout_seconds))
        store = meet(launch, claim, patience=patience)
        _agree(store, launch, entries, patience=patience, claim=claim)
    keep_gloo_inside(os.environ, launch=launch)
    # gloo in addition to nccl: checkpoints and metrics move CPU tensors too.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=store,
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timedelta(seconds=timeout_seconds),
    )
    return store


def meet(launch: Launch, claim: Claim | None = None, *, patience: timedelta = _ARRIVAL_TIMEOUT) -> Store:
    """The store of a launch of several ranks; RunError if it can't be reached."""
    assert launch.address is not None and launch.port is not None
    _await_name(launch.address)
    is_host = launch.rank == 0 and not launch.agent_hosts_store
    if not is_host:
        # torch's own client retries for up to twice its timeout, and its error has only an address.
        await_host(launch, claim, patience=patience)
    try:
        store = TCPStore(
            launch.address,
            launch.port,
            is_master=is_host,
            timeout=_STORE_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener(launch) if is_host else None,
        )
    except (RuntimeError, OSError, DistError) as error:
        raise RunError(
            f"rank {launch.rank} cannot reach {launch.address}:{launch.port}: {str(error).splitlines()[0]}",
            code=ExitCode.COMMUNICATION,
            help="check MASTER_ADDR and MASTER_PORT, and that every rank was started",
            is_shared=False,
        ) from error
    # Attempts of one torchrun share its agent's store, so each needs its own keys.
    attempt = f"/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}" if launch.agent_hosts_store else ""
    run = f"/run-{launch.num_before}" if launch.num_before else ""
    found = PrefixStore(f"planc{attempt}{run}", store)
    register(found, launch)
    return found


def _await_name(address: str) -> None:
    """RunError if the name of rank 0's machine does not resolve."""
    deadline = time.monotonic() + _NAME_SECONDS
    while True:
        try:
            socket.getaddrinfo(address, None)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RunError(
                    f"MASTER_ADDR = {address} does not resolve: {error.strerror}",
                    code=ExitCode.COMMUNICATION,
                    help="set it to the host name or address of rank 0's machine",
                    is_shared=False,
                ) from error
            time.sleep(_NAME_POLL_SECONDS)
        else:
            return


def _agree(
    store: Store, launch: Launch, entries: Sequence[Entry], *, patience: timedelta, claim: Claim | None
) -> None:
    """RunError on every rank if one of them does not come, or has other entries."""
    store.set(f"digest/{launch.rank}", digest(entries))
    verdict = {"absent": "rank 0 did not respond in time"}
    try:
        if launch.rank == 0:
            absent = _absent(store, launch, patience=patience, claim=claim)
            store.set("verdict", json.dumps({"absent": absent} if absent else _verdict(store, launch)))
        # Rank 0 waits as long for missing ranks, and must then report them.
        if await_keys(store, ["verdict"], patience=patience + PARTING_TIMEOUT, claim=claim):
            received = json.loads(store.get("verdict"))
            if "expected_of" in received:
                _refuse_difference(store, launch, entries, expected_of=received["expected_of"])
            verdict = received
    except (RuntimeError, DistError):
        pass
    except RunError:
        part(store, launch, key="seen")
        raise
    if "absent" in verdict:
        part(store, launch, key="seen")
        help = "check why it did not start, or could not reach MASTER_ADDR and MASTER_PORT"
        raise RunError(verdict["absent"], code=ExitCode.COMMUNICATION, help=help)


def _absent(store: Store, launch: Launch, *, patience: timedelta, claim: Claim | None) -> str:
    """The ranks that did not join, as text; empty if all did."""
    keys = [f"digest/{rank}" for rank in range(launch.world_size)]
    with contextlib.suppress(RuntimeError, DistError):
        await_keys(store, keys, patience=patience, claim=claim)
    absent = [rank for rank, key in enumerate(keys) if not store.check([key])]
    return f"{ranks_text(absent)} did not join within {patience.seconds} s" if absent else ""


def _verdict(store: Store, launch: Launch) -> dict[str, int]:
    """The rank whose entries count as right, if some differ."""
    digests = [store.get(f"digest/{rank}").decode() for rank in range(launch.world_size)]
    return {"expected_of": majority(digests)} if len(set(digests)) > 1 else {}


def _refuse_difference(
    store: Store, launch: Launch, entries: Sequence[Entry], *, expected_of: int
) -> NoReturn:
    """RunError with what differs, and where: every rank compares its own entries with one rank's."""
    if launch.rank == expected_of:
        store.set("expected", json.dumps([[entry.kind, entry.name, entry.value] for entry in entries]))
    expected = [Entry(*entry) for entry in json.loads(store.get("expected"))]
    own = deviation(launch.rank, socket.gethostname(), entries, expected)
    store.set(f"deviation/{launch.rank}", json.dumps(own.data()))
    gathered = [json.loads(store.get(f"deviation/{rank}")) for rank in range(launch.world_size)]
    raise refusal([deviation_of(one) for one in gathered], world_size=launch.world_size)


class Mesh:
    """The device mesh, by mesh dim."""

    def __init__(self, device_mesh: DeviceMesh) -> None:
        self.device_mesh = device_mesh
        # Slicing a mesh takes longer than everything a step does with its dims.
        self._submeshes: dict[MeshDim, DeviceMesh] = {}
        self._of_experts: DeviceMesh | None = None

    def of_experts(self, run: Run) -> DeviceMesh:
        """The mesh with the factors of mesh dims in their place, over which experts are sharded.

        The first call is a collective: it makes their process groups.
        """
        if self._of_experts is None:
            op = run.graph.experts
            assert op is not None, "only a graph with experts.shard asks for it"
            factors = tuple(ExpertDim)
            sizes, names = map(run.graph.size, factors), (factor.value for factor in factors)
            # By its place: PyTorch 2.11 refuses the names that a mesh has.
            place = list(MeshDim).index(op.over[0])
            self._of_experts = split_mesh(self._joined(op.over), place, tuple(sizes), tuple(names))
            for factor in factors:
                _limit(run, self._of_experts[factor.value])
        return self._of_experts

    def _joined(self, mesh_dims: tuple[MeshDim, ...]) -> DeviceMesh:
        """The mesh with these dims, neighbors of each other, as one; the first call is a collective."""
        if len(mesh_dims) == 1:
            return self.device_mesh
        # A dim of one rank between them joins too.
        dims = list(MeshDim)
        first, last = dims.index(mesh_dims[0]), dims.index(mesh_dims[-1])
        before, inside, after = dims[:first], dims[first : last + 1], dims[last + 1 :]
        joined: DeviceMesh = concatenate_meshes(
            [*map(self.submesh, before), flattened(self.device_mesh, inside), *map(self.submesh, after)]
        )
        return joined

    def submesh(self, mesh_dim: MeshDim) -> DeviceMesh:
        if mesh_dim not in self._submeshes:
            self._submeshes[mesh_dim] = self.device_mesh[mesh_dim.value]
        return self._submeshes[mesh_dim]

    def group(self, mesh_dim: MeshDim) -> ProcessGroup:
        return self.submesh(mesh_dim).get_group()

    def columns(self, mesh_dim: MeshDim) -> list[list[int]]:
        """The ranks along a mesh dim, for each place along the others."""
        ranks = self.device_mesh.mesh.movedim(list(MeshDim).index(mesh_dim), -1)
        found: list[list[int]] = ranks.reshape(-1, ranks.shape[-1]).tolist()
        return found

    def sum_over(self, tensor: Tensor, mesh_dims: Iterable[MeshDim]) -> Tensor:
        """`tensor`, summed in place over the given mesh dims one after the other."""
        for mesh_dim in mesh_dims:
            dist.all_reduce(tensor, group=self.group(mesh_dim))
        return tensor


def init_mesh(run: Run, op: InitMesh) -> Mesh:
    """Create the mesh. The process group exists already: ranks compared graphs through it."""
    names = tuple(mesh_dim.value for mesh_dim, _ in op.sizes)
    sizes = tuple(size for _, size in op.sizes)
    mesh = init_device_mesh(run.device.type, sizes, mesh_dim_names=names)
    for name in names:
        _limit(run, mesh[name])
    return Mesh(mesh)


def _limit(run: Run, mesh: DeviceMesh) -> None:
    """Let a mesh dim's collectives fail after the plan's timeout."""
    if mesh.size() > 1:
        set_timeout(timedelta(seconds=run.graph.init_mesh.timeout_seconds), mesh.get_group())


def flattened(mesh: DeviceMesh, dims: Sequence[GroupDim]) -> DeviceMesh:
    """Several dims of a mesh as one, named by its parts."""
    names = tuple(dim.value for dim in dims)
    part: DeviceMesh = mesh[names]
    return flatten_mesh(part, "_".join(names)) if len(names) > 1 else part


def fsdp_mesh(
    run: Run, mesh: Mesh, *, shard_over: tuple[GroupDim, ...], replicate_over: tuple[MeshDim, ...]
) -> DeviceMesh:
    """The mesh for `fully_shard`: [replicate,] shard, the shard dims flattened into one."""
    # Of a parameter that is sharded before, FSDP needs a mesh with the same root.
    root = mesh.of_experts(run) if ExpertDim.EFSDP in shard_over else mesh.device_mesh
    # With a dim of one rank it would be another group of the same ranks.
    wide = tuple(dim for dim in shard_over if run.graph.size(dim) > 1)
    shard = flattened(root, wide or shard_over[:1])
    _limit(run, shard)
    replicate = [root[mesh_dim.value] for mesh_dim in replicate_over]
    meshes: DeviceMesh = concatenate_meshes([*replicate, shard]) if replicate else shard
    return meshes
