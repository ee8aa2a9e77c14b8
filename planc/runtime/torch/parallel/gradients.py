"""Gradients: reduced, measured and scaled, on any meshes of their parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Partial, Replicate

from planc.graph.ops import ClipGradients, SumTies, SyncGradients
from planc.runtime.torch import private
from planc.runtime.torch.parallel.local_parts import layout_of, local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import ClippedGradients, Gradients, Norm, SyncedGradients

_ROW = 4096
"""Elements whose squares are summed in the gradient's own precision."""


@torch.no_grad()
def sync_gradients(run: Run, op: SyncGradients, gradients: Gradients) -> SyncedGradients:
    """Sum gradients that are still partial over the ranks that hold summands, and redistribute the rest.

    FSDP does so for the parameters it shards; this is for those under tensor parallelism only.
    """
    synced = SyncedGradients(gradients.weights)
    if not op.over:
        return synced
    partial: dict[tuple[str, torch.dtype], tuple[ProcessGroup, list[nn.Parameter]]] = {}
    for parameter in gradients.weights.parameters.values():
        gradient = parameter.grad
        if not isinstance(gradient, DTensor) or gradient.placements == parameter.placements:  # type: ignore[attr-defined]
            continue
        group = _group_of_summands(gradient, parameter)
        if group is None:
            parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
        else:
            key = (group.group_name, gradient.dtype)
            partial.setdefault(key, (group, []))[1].append(parameter)
    for group, members in partial.values():
        sum_together(members, group=group)
    return synced


def _group_of_summands(gradient: DTensor, parameter: Tensor) -> ProcessGroup | None:
    """The ranks, if a gradient only lacks their sum; None if its layout must change."""
    lacking = [
        (mesh_dim, pair)
        for mesh_dim, pair in enumerate(zip(gradient.placements, parameter.placements, strict=True))  # type: ignore[attr-defined]
        if pair[0] != pair[1]
    ]
    match lacking:
        case [(mesh_dim, (arriving, leaving))] if arriving == Partial() and leaving == Replicate():
            return gradient.device_mesh.get_group(mesh_dim)
        case _:
            return None


def sum_together(parameters: Sequence[nn.Parameter], *, group: ProcessGroup) -> None:
    """Sum the gradients of all parameters, which have one dtype, in one message.

    A norm's gradient is small, and a message of its own costs more than its bytes.
    """
    flat, parts = flattened([parameter.grad for parameter in parameters if parameter.grad is not None])
    dist.all_reduce(flat, group=group)
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = layout_of(parameter)(part)


def flattened(gradients: Iterable[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """This rank's parts of all gradients in one flat tensor, and each part as a view of it.

    Several gradients are copied. One alone is not: its copy would be as large as an embedding.
    """
    local = [local_of(gradient) for gradient in gradients]
    flat = torch.cat([gradient.reshape(-1) for gradient in local]) if len(local) > 1 else local[0].reshape(-1)
    parts = torch.split(flat, [gradient.numel() for gradient in local])
    return flat, [part.view(gradient.shape) for part, gradient in zip(parts, local, strict=True)]


@torch.no_grad()
def sum_ties(run: Run, op: SumTies, pipeline: Pipeline, gradients: SyncedGradients) -> None:
    """Sum the gradients of weights that both ends of a pipeline have; nothing on ranks between them."""
    for name in pipeline.ties:
        parameter = gradients.weights.model.get_parameter(name)
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, "both the embedding and the head have run"
        dist.all_reduce(local_of(parameter.grad), group=pipeline.ends)


@torch.no_grad()
def clip_gradients(
    run: Run, op: ClipGradients, mesh: Mesh, gradients: SyncedGradients, pipeline: Pipeline | None
) -> tuple[ClippedGradients, Norm]:
    """Measure all gradients. The optimizer clips, by the norm that the host has read by then."""
    squared = norm_of_step(run, mesh, gradients, pipeline)
    return ClippedGradients(gradients.weights, op.max_norm), Norm(squared)


def measure_again(run: Run, mesh: Mesh, gradients: Gradients, pipeline: Pipeline | None) -> float:
    """The norm of gradients whose squares overflow float32; else NaN or inf.

    All ranks have the same sum of squares, so all of them measure again.
    """
    return norm_of(norm_of_step(run, mesh, gradients, pipeline, dtype=torch.float64).item())


def norm_of_step(
    run: Run,
    mesh: Mesh,
    gradients: Gradients,
    pipeline: Pipeline | None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """`squared_norm` of all gradients, of all stages of a pipeline: of tied weights, the first stage's."""
    if pipeline is None:
        return squared_norm(gradients.tensors, device=run.device, dtype=dtype)
    parameters = gradients.weights.parameters.items()
    own = (one.grad for name, one in parameters if name not in pipeline.copies)
    squared = squared_norm([one for one in own if one is not None], device=run.device, dtype=dtype)
    return mesh.sum_over(squared, pipeline.op.over)


def clip_factor(norm: float, *, max_norm: float | None) -> float:
    """The factor that clips gradients of this norm; 1 if the norm is not finite."""
    if max_norm is None or not max_norm < norm < math.inf:
        return 1.0
    return max_norm / (norm + 1e-6)


@torch.no_grad()
def scale(gradients: Iterable[Tensor], *, factor: float) -> None:
    """Multiply every gradient in place, in float32 at least."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        local = local_of(gradient)
        alike.setdefault((local.device, local.dtype), []).append(local)
    for (device, dtype), members in alike.items():
        own = torch.full((), factor, dtype=torch.promote_types(dtype, torch.float32), device=device)
        if own.dtype == dtype:
            private.foreach_mul(members, own)
            continue
        for local in members:
            # On a device, a scalar is rounded to the gradient's dtype first; a vector of one element is not.
            local.mul_(own.view(1))


def norm_of(squared: float) -> float:
    """The norm of this square; NaN if it has none."""
    return math.sqrt(squared) if squared >= 0 else math.nan


def squared_norm(
    gradients: Iterable[Tensor], *, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The square of the global norm, a float64 scalar, the same on every rank.

    `dtype`: that of sums of up to 4_096 squares, if gradients are not wider; all else is in float64.
    Squares of gradients that are sharded over the same ranks are summed here, then over those ranks,
    innermost mesh dim first: at each mesh dim, gradients that still need the same sum share it. torch's own
    clipping needs all gradients on one mesh.
    """
    alike: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        layout = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        alike.setdefault(layout, []).append(gradient)
    groups: dict[str, ProcessGroup] = {}
    members: dict[tuple[str, ...], list[Tensor]] = {(): []}
    for some in alike.values():
        norms = _norms([local_of(one) for one in some], dtype=dtype)
        divided = {str(group.group_name): group for group in _sharding_groups(some[0])}
        groups |= divided
        members.setdefault(tuple(divided), []).append(torch.cat(norms).double().square().sum())
    while lacking := max(members, key=len):
        total = torch.stack(members.pop(lacking)).sum()
        dist.all_reduce(total, group=groups[lacking[-1]])
        members.setdefault(lacking[:-1], []).append(total)
    nothing = torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack([total.to(device) for total in members[()]] or [nothing]).sum()


def _norms(gradients: Sequence[Tensor], *, dtype: torch.dtype) -> list[Tensor]:
    """1-D tensors of 2-norms of disjoint parts of all gradients."""
    is_float32 = all(torch.promote_types(gradient.dtype, dtype) == torch.float32 for gradient in gradients)
    if is_float32 and sums_in_blocks(gradients[0].device):
        return [torch.stack(private.foreach_norm(gradients, 2, dtype))]
    return [norm for local in _joined(gradients) for norm in _partial_norms(local, dtype=dtype)]


def sums_in_blocks(device: torch.device) -> bool:
    """Whether many threads sum the squares of a large tensor, so float32 is exact enough."""
    return device.type == "cuda"


def _joined(gradients: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same elements in fewer tensors.

    Gradients that were summed or reduced in one message lie side by side in its memory. One norm of them
    all takes a fraction of the time of theirs.
    """
    by_memory: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        if gradient.is_contiguous():
            key = gradient.untyped_storage()._cdata, gradient.dtype
            by_memory.setdefault(key, []).append(gradient)
        else:
            yield gradient
    for some in by_memory.values():
        yield from some if len(some) == 1 else _runs(sorted(some, key=Tensor.storage_offset))


def _runs(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Parts of one memory, in its order: those without a gap in between as one."""
    run: list[Tensor] = []
    for part in parts:
        if run and run[-1].storage_offset() + run[-1].numel() != part.storage_offset():
            yield _whole(run)
            run = []
        run.append(part)
    yield _whole(run)


def _whole(run: Sequence[Tensor]) -> Tensor:
    return run[0].as_strided((sum(part.numel() for part in run),), (1,))


def _partial_norms(local: Tensor, *, dtype: torch.dtype) -> Iterator[Tensor]:
    """1-D tensors of 2-norms, each of at most 4_096 elements.

    One norm in float32 of a large tensor is off by more than 1e-4 on CPUs, where it is summed in few
    lanes; one in float64 takes 25 times as long.
    """
    dtype = torch.promote_types(dtype, local.dtype)
    num_elements = local.numel()
    rows = num_elements // _ROW * _ROW
    if rows and rows == num_elements:
        # Most are whole rows, and need no slice, which takes as long as the norm of a small one.
        yield torch.linalg.vector_norm(local.reshape(-1, _ROW), dim=1, dtype=dtype)
        return
    flat = local.reshape(-1)
    if rows:
        yield torch.linalg.vector_norm(flat[:rows].view(-1, _ROW), dim=1, dtype=dtype)
    yield torch.linalg.vector_norm(flat[rows:], dtype=dtype).reshape(1)


def _sharding_groups(gradient: Tensor) -> list[ProcessGroup]:
    """The ranks of each mesh dim that shards a gradient; none for a plain tensor."""
    if not isinstance(gradient, DTensor):
        return []
    # Strided shards are not a subclass of Shard, so this tests for anything that is not replicated.
    divided = [index for index, placement in enumerate(gradient.placements) if placement != Replicate()]
    return [gradient.device_mesh.get_group(index) for index in divided]
