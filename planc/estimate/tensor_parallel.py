"""The communication of tensor parallelism: each style's redistributions, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

from planc.estimate.rank_work import FEATURES, RankWork
from planc.estimate.result import Collective, Kind
from planc.estimate.selective import keeps_scattered
from planc.inventory.schema import Kind as ModuleKind
from planc.inventory.schema import Module, Routing
from planc.record import record
from planc.styles import BY_NAME, StyleUse
from planc.vocab import MeshDim, Partial, Placement, Replicate, Shard

_OVER = (MeshDim.TP,)


@record
class _Boundary:
    """A redistribution of a module: activations of `width` features change from one placement to another."""

    width: int
    arriving: Placement
    leaving: Placement


def tensor_parallel_collectives(work: RankWork) -> Iterator[Collective]:
    """The collectives over tp of a step.

    A redistribution of DTensor costs one collective forward and, transposed, one backward: gathering becomes
    reduce-scattering, and an all-reduce costs nothing backward (torch/distributed/tensor/
    _redistribute.py).
    Inside recomputed modules, the forward collectives happen twice, except after the last
    tensor that backward needs: torch stops recomputing there (torch/utils/checkpoint.py, early stop).
    """
    read = {source for module in work.inventory.modules for source in _reads(work, module)}
    for fqn, use in work.styles.items():
        module = work.module(fqn)
        again = work.checkpoint_around(fqn) is not None
        for boundary in _entrance(work, module, use):
            yield from _forward(work, boundary, times=1 + again)
            # After plain tensors, every reader has reduced its own gradient.
            is_summed = use.style == "prepare_input_output"
            yield from (_exit_backward if is_summed else _entrance_backward)(work, boundary)
        is_sent_again = again and fqn in read and not keeps_scattered(work, fqn)
        for boundary in _exit(work, module, use):
            yield from _forward(work, boundary, times=1 + is_sent_again)
            yield from _exit_backward(work, boundary)
        if BY_NAME[use.style].meets_heads:
            rotary = _Boundary(_rotary_width(work, module), Replicate(), Replicate())
            yield from _entrance_backward(work, rotary)
        if use.style == "moe_tp_experts" and module.routing is not None:
            yield _routing(work, module.routing)
    yield from _parameter_gradients(work)
    yield from _loss(work)


def _reads(work: RankWork, module: Module) -> Iterator[str]:
    """The sources of a module in the same checkpointed region; outside of it, nothing is recomputed."""
    region = work.checkpoint_around(module.fqn)
    if region is not None:
        yield from (source for source in module.sources if source.startswith(f"{region}."))


def _entrance(work: RankWork, module: Module, use: StyleUse) -> Iterator[_Boundary]:
    """The redistribution of a module's input; None after a container that prepares it."""
    if module.kind is ModuleKind.EMBEDDING or work.gate(module) is not None:
        return
    style = BY_NAME[use.style]
    if style.prepares or use.style == "moe_tp_experts":
        yield _Boundary(work.inventory.hidden_size, use.input, use.computes_on)
    elif style.meets_heads:
        return
    elif module.kind is ModuleKind.LINEAR:
        yield _Boundary(_weight(module)[1], use.input, use.computes_on)


def _exit(work: RankWork, module: Module, use: StyleUse) -> Iterator[_Boundary]:
    style, hidden_size = BY_NAME[use.style], work.inventory.hidden_size
    if style.prepares:
        if "output" in style.options:
            yield _Boundary(hidden_size, use.computes_on, use.output)
        return
    if use.style == "moe_tp_experts":
        yield _Boundary(hidden_size, Partial(), use.output)
        return
    if style.meets_heads:
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


def _routing(work: RankWork, routing: Routing) -> Collective:
    """The gradients of the weights of a token's experts, each rank's from its shard of them."""
    element = max(4, work.compute_dtype.size_bytes) if routing.in_float32 else work.compute_dtype.size_bytes
    return _activation(work, Kind.ALL_REDUCE, work.num_tokens * routing.experts_per_token * element, 1)


def _rotary_width(work: RankWork, module: Module) -> int:
    """The width of a latent projection's output that the norm after it does not take."""
    normed = max(
        (
            parameter.num_elements
            for reader in work.inventory.modules
            if reader.kind is ModuleKind.NORM and reader.sources == (module.fqn,)
            for parameter in reader.parameters
        ),
        default=0,
    )
    return _weight(module)[0] - normed


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
        case Partial() | Replicate(), Shard():
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
    if kind is Kind.ALL_TO_ALL and work.runs_on_gloo:
        # On CPUs, DTensor gathers everything and keeps its part (tensor/_collective_utils.py).
        kind = Kind.ALL_GATHER
    return Collective(_OVER, work.tp, kind, "tp.shard", times * work.times, input_bytes)


def _parameter_gradients(work: RankWork) -> Iterator[Collective]:
    """Gradients of replicated parameters with different activations on ranks: summed once per step.

    All in one message, except under FSDP, which sums them itself, one by one. Over several micro steps it
    gathers gradients in its reduce dtype (FSDPParam.to_accumulated_grad).
    """
    sizes = [
        parameter.num_elements
        for fqn, use in work.styles.items()
        if BY_NAME[use.style].reduces_parameter_gradients
        for parameter in work.module(fqn).parameters
    ]
    if not sizes:
        return
    dtype = work.reduce_dtype if work.times > 1 else work.compute_dtype
    for num_elements in sizes if work.has_fsdp else (sum(sizes),):
        num_bytes = num_elements * dtype.size_bytes
        yield Collective(_OVER, work.tp, Kind.ALL_REDUCE, "grads.sync", 1, num_bytes)


def _loss(work: RankWork) -> Iterator[Collective]:
    """Every token's maximum, sum of exponentials and label logit (torch.distributed.tensor.parallel.loss)."""
    if work.vocab_over:
        num_bytes = work.num_tokens * work.loss_bytes
        yield Collective(_OVER, work.tp, Kind.ALL_REDUCE, "loss", 3 * work.times, num_bytes)
