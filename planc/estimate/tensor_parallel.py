"""What tensor parallelism sends: each style's redistributions, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

from planc.estimate.model import Collective, Kind
from planc.estimate.rank_work import FEATURES, RankWork
from planc.inventory.schema import Kind as ModuleKind
from planc.inventory.schema import Module
from planc.record import record
from planc.styles import BY_NAME, StyleUse
from planc.vocab import MeshDim, Partial, Placement, Replicate, Shard

_OVER = (MeshDim.TP,)


@record
class _Boundary:
    """One edge of a module: activations of `width` features change from one placement to another."""

    width: int
    arriving: Placement
    leaving: Placement


def tensor_parallel_collectives(work: RankWork) -> Iterator[Collective]:
    """The collectives over tp of a step.

    A redistribution of DTensor costs one collective forward and, transposed, one backward: gathering becomes
    reduce-scattering, and a sum to the whole costs nothing backward (torch/distributed/tensor/
    _redistribute.py).
    Inside modules that are computed again the forward collectives happen twice, except what follows the last
    tensor that backward needs: torch stops recomputing there (torch/utils/checkpoint.py, early stop).
    """
    read = {source for module in work.inventory.modules for source in _reads(work, module)}
    for fqn, use in work.styles.items():
        module = work.module(fqn)
        again = work.checkpoint_around(fqn) is not None
        for boundary in _entrance(work, module, use):
            yield from _forward(work, boundary, times=1 + again)
            yield from _entrance_backward(work, boundary)
        for boundary in _exit(module, use):
            yield from _forward(work, boundary, times=1 + (again and fqn in read))
            yield from _exit_backward(work, boundary)
    yield from _parameter_gradients(work)
    yield from _loss(work)


def _reads(work: RankWork, module: Module) -> Iterator[str]:
    """What a module reads from the same checkpointed region: outside it, nothing has to be computed again."""
    region = work.checkpoint_around(module.fqn)
    if region is not None:
        yield from (source for source in module.sources if source.startswith(f"{region}."))


def _entrance(work: RankWork, module: Module, use: StyleUse) -> Iterator[_Boundary]:
    """Where activations enter; none behind a container that brings them as the module needs them."""
    if module.kind is ModuleKind.EMBEDDING or work.gate(module) is not None:
        return
    if use.style == "prepare_input":
        yield _Boundary(work.inventory.hidden_size, use.input, use.computes_on)
    elif module.kind is ModuleKind.LINEAR:
        yield _Boundary(_weight(module)[1], use.input, use.computes_on)


def _exit(module: Module, use: StyleUse) -> Iterator[_Boundary]:
    if use.style == "prepare_input":
        return
    match module.kind:
        case ModuleKind.LINEAR:
            yields = Partial() if use.computes_on == FEATURES else FEATURES
            yield _Boundary(_weight(module)[0], yields, use.output)
        case ModuleKind.EMBEDDING:
            by_rows = BY_NAME[use.style].parameters.get("weight") == Shard(0)
            yield _Boundary(_weight(module)[1], Partial() if by_rows else FEATURES, use.output)
        case _:
            return


def _weight(module: Module) -> tuple[int, ...]:
    return next(parameter.shape for parameter in module.parameters if parameter.name == "weight")


def _forward(work: RankWork, boundary: _Boundary, *, times: int) -> Iterator[Collective]:
    match boundary.arriving, boundary.leaving:
        case Shard(), Replicate():
            yield _activation(work, Kind.ALL_GATHER, _part(work, boundary), times)
        case Partial(), Replicate():
            yield _activation(work, Kind.ALL_REDUCE, _whole(work, boundary), times)
        case Partial(), Shard():
            yield _activation(work, Kind.REDUCE_SCATTER, _whole(work, boundary), times)
        case Shard() as arriving, Shard() as leaving if arriving != leaving:
            yield _activation(work, Kind.ALL_TO_ALL, _part(work, boundary), times)


def _entrance_backward(work: RankWork, boundary: _Boundary) -> Iterator[Collective]:
    """The gradient of an input that every rank reads whole is a partial sum."""
    match boundary.arriving, boundary.leaving:
        case Replicate(), Replicate():
            yield _activation(work, Kind.ALL_REDUCE, _whole(work, boundary), 1)
        case Shard(), Replicate():
            yield _activation(work, Kind.REDUCE_SCATTER, _whole(work, boundary), 1)
        case Replicate(), Shard():
            yield _activation(work, Kind.ALL_GATHER, _part(work, boundary), 1)
        case Shard() as arriving, Shard() as leaving if arriving != leaving:
            yield _activation(work, Kind.ALL_TO_ALL, _part(work, boundary), 1)


def _exit_backward(work: RankWork, boundary: _Boundary) -> Iterator[Collective]:
    match boundary.arriving, boundary.leaving:
        case Partial(), Shard():
            yield _activation(work, Kind.ALL_GATHER, _part(work, boundary), 1)
        case Shard() as arriving, Shard() as leaving if arriving != leaving:
            yield _activation(work, Kind.ALL_TO_ALL, _part(work, boundary), 1)


def _whole(work: RankWork, boundary: _Boundary) -> int:
    return work.num_tokens * boundary.width * work.compute_dtype.size_bytes


def _part(work: RankWork, boundary: _Boundary) -> int:
    """Bytes of a rank's chunk; uneven features are padded to the largest."""
    if FEATURES in (boundary.arriving, boundary.leaving):
        return work.num_tokens * -(-boundary.width // work.tp) * work.compute_dtype.size_bytes
    return _whole(work, boundary) // work.tp


def _activation(work: RankWork, kind: Kind, input_bytes: int, times: int) -> Collective:
    return Collective(_OVER, work.tp, kind, "tp.shard", times * work.times, input_bytes)


def _parameter_gradients(work: RankWork) -> Iterator[Collective]:
    """Whole parameters whose ranks saw different activations: summed once a step, one by one.

    Over several micro steps FSDP gathers gradients in its reduce dtype (FSDPParam.to_accumulated_grad).
    """
    dtype = work.reduce_dtype if work.times > 1 else work.compute_dtype
    for fqn, use in work.styles.items():
        if BY_NAME[use.style].reduces_parameter_gradients:
            for parameter in work.module(fqn).parameters:
                num_bytes = parameter.num_elements * dtype.size_bytes
                yield Collective(_OVER, work.tp, Kind.ALL_REDUCE, "grads.sync", 1, num_bytes)


def _loss(work: RankWork) -> Iterator[Collective]:
    """Every token's maximum, sum of exponentials and label logit (torch.distributed.tensor.parallel.loss)."""
    if work.vocab_over:
        num_bytes = work.num_tokens * work.loss_bytes
        yield Collective(_OVER, work.tp, Kind.ALL_REDUCE, "loss", 3 * work.times, num_bytes)
