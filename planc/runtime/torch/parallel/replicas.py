"""Check that replicas hold the same bits: a flipped bit causes no error by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from planc.graph.graph import Graph
from planc.graph.ops import CompareReplicas
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.numerics import MAX_NAMED, ranks_text
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import History, Update, Weights
from planc.vocab import ExpertDim, GroupDim, MeshDim

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype of an element's size, in bytes."""
_PIECE = 1 << 20
"""Elements per pass: they take eight bytes each."""
_GOLDEN = -7046029254386353131
"""2^64 over the golden ratio, as a signed integer: multiples of it differ in all their bits."""


def compare_replicas(
    run: Run,
    op: CompareReplicas,
    mesh: Mesh,
    weights: Weights,
    update: Update,
    history: History,
    pipeline: Pipeline | None,
) -> History:
    """RunError on every rank if a parameter's copies differ, with its name and the ranks.

    One reduction for each mesh dim with replicas, of 16 bytes per parameter, and one of 8
    bytes over all ranks. A rank reads each of its copied weights once.
    """
    if not op.is_due(step=update.step, num_steps=run.graph.num_steps):
        return history
    copies = replicated(run, weights, pipeline, over=op.over)
    digests = {name: digest(local_of(one).detach()) for name, one in copies.items()}
    differing = _differing(run, mesh, copies, digests, pipeline=pipeline, over=op.over)
    number = torch.tensor(len(differing), dtype=torch.int64, device=run.device)
    if run.launch.world_size > 1:
        dist.all_reduce(number)
    if not number.item():
        return replace(history, replicas_agreed_at=update.step)
    own = {name: digests[name] for name in differing}
    raise _failure(run, update.step, own=own, agreed=history.replicas_agreed_at)


def replicated(
    run: Run, weights: Weights, pipeline: Pipeline | None, *, over: Sequence[MeshDim]
) -> dict[str, Tensor]:
    """The parameters that ranks hold more than once, by name."""
    return {
        name: parameter
        for name, parameter in weights.parameters.items()
        if any(_is_replicated(run, pipeline, name, parameter, mesh_dim) for mesh_dim in over)
    }


def _is_replicated(
    run: Run, pipeline: Pipeline | None, name: str, parameter: Tensor, mesh_dim: MeshDim
) -> bool:
    """Whether the ranks along a mesh dim all hold the same part; of pp, those at both ends."""
    if mesh_dim is MeshDim.PP:
        return pipeline is not None and name in pipeline.ties
    if not isinstance(parameter, DTensor):
        return True
    names = parameter.device_mesh.mesh_dim_names or ()
    for name, placement in zip(names, parameter.placements, strict=True):
        # A flattened mesh dim is named by its parts: dp_shard_cp.
        if mesh_dim in _parts(run.graph, name):
            return bool(placement == Replicate())
    return True


def _parts(graph: Graph, name: str) -> tuple[MeshDim, ...]:
    if name == ExpertDim.EP:
        return graph.mesh_dims(ExpertDim.EP)
    dims: tuple[GroupDim, ...] = (*MeshDim, ExpertDim.EFSDP)
    return tuple(part for dim in dims if dim.value in name for part in graph.mesh_dims(dim))


def digest(tensor: Tensor) -> Tensor:
    """A digest of all bits, an int64 scalar: any change of a single element is certain to change it.

    The sum of the elements' bits, each times an odd number of its index, modulo 2^64. A flip adds an
    odd number times a power of two, and never zero; several changes cancel once in 2^32 or more.
    """
    bits = tensor.contiguous().view(-1).view(_BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), _PIECE):
        piece = bits[start : start + _PIECE].to(torch.int64)
        places = torch.arange(start, start + piece.numel(), dtype=torch.int64, device=tensor.device)
        total += (piece * (places.mul_(_GOLDEN).bitwise_or_(1))).sum()
    return total


def _differing(
    run: Run,
    mesh: Mesh,
    copies: Mapping[str, Tensor],
    digests: Mapping[str, Tensor],
    *,
    pipeline: Pipeline | None,
    over: Sequence[MeshDim],
) -> list[str]:
    """The parameters whose digest differs between ranks of this one's groups, along any mesh dim."""
    differing: dict[str, None] = {}
    for mesh_dim in over:
        names = [name for name in digests if _is_replicated(run, pipeline, name, copies[name], mesh_dim)]
        if not names or run.graph.size(mesh_dim) == 1:
            continue
        own = torch.stack([digests[name] for name in names]).to(run.device)
        # The complement reverses the order and never overflows, so one reduction gives both extremes.
        ends = torch.cat((own, ~own))
        group = mesh.group(mesh_dim)
        if mesh_dim is MeshDim.PP:
            assert pipeline is not None and pipeline.ends is not None, "it has a tied weight"
            group = pipeline.ends
        dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
        highest, lowest = ends[: len(names)], ~ends[len(names) :]
        is_other = (highest != lowest).tolist()
        differing.update((name, None) for name, differs in zip(names, is_other, strict=True) if differs)
    return list(differing)


def _failure(run: Run, step: int, *, own: Mapping[str, Tensor], agreed: int | None) -> RunError:
    own_values = {name: f"{int(value) & (2**64 - 1):016x}" for name, value in list(own.items())[:MAX_NAMED]}
    statements = [(run.launch.rank, own_values)]
    if run.statements is not None:
        statements = run.statements.gather(f"replicas/{step}", own_values)  # type: ignore[assignment]
    by_name: dict[str, dict[str, list[int]]] = {}
    for rank, digests in statements:
        for name, value in digests.items():
            by_name.setdefault(name, {}).setdefault(value, []).append(rank)
    last = "none was compared before" if agreed is None else f"they agreed after step {agreed}"
    texts = [_described(name, holders) for name, holders in by_name.items()][:MAX_NAMED]
    return RunError(
        f"copies of a weight differ after step {step} ({last}): {'; '.join(texts)}",
        code=ExitCode.NUMERICS,
        help="resume without that machine, from a checkpoint saved while they agreed: a bit of its memory "
        "has flipped, or its arithmetic differs from the others'",
        record={"replicas": {"step": step, "agreed_at": agreed, "parameters": by_name}},
    )


def _described(name: str, holders: Mapping[str, Sequence[int]]) -> str:
    """The ranks that differ from the majority; without one, all groups that differ."""
    groups = sorted(holders.values(), key=len, reverse=True)
    if len(groups) > 1 and len(groups[0]) > len(groups[1]):
        others = sorted(rank for group in groups[1:] for rank in group)
        return f"{name} on {ranks_text(others)} differs from {ranks_text(groups[0])}"
    return f"{name} differs between {' and '.join(ranks_text(group) for group in groups)}"
