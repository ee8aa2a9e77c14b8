"""The memory that attention holds for pairs of tokens, and the nearest plan that holds less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planc.capacity.draft import Draft
from planc.devices.attention_kernels import Kernel, kernel_of
from planc.devices.hardware import Change, PairDemand
from planc.plan.attention_calls import attention_calls
from planc.plan.bind import BoundPlan, bind
from planc.plan.spec import AttentionKernel, Plan, Rotate

MUCH = 0.1
"""The share of a device's memory, or of the peak where no device is known, that counts as much."""
_LITTLE_BYTES = 2**30
"""Less than this fits any accelerator."""

_Edit = Callable[[BoundPlan], BoundPlan]


def pair_demand(draft: Draft) -> PairDemand | None:
    """The bytes that attention holds for pairs of tokens; None if not many. The plan may break rules."""
    bound = draft.bound
    if not _may_hold(bound):
        return None
    memory, hardware = draft.estimate.memory, bound.plan.hardware
    limit = MUCH * (hardware.gpu.memory_bytes if hardware else memory.peak.num_bytes)
    kernels = tuple(
        (one.name, one.reasons, one.pair_bytes) for one in draft.estimate.attention if one.pair_bytes
    )
    num_bytes = sum(size for _, _, size in kernels)
    if num_bytes <= max(limit, 0 if hardware else _LITTLE_BYTES):
        return None
    whole = (
        (hardware.gpu.name, hardware.gpu.memory_bytes) if hardware else ("the peak", memory.peak.num_bytes)
    )
    return PairDemand(kernels, *whole, _nearest(bound, limit))


def _may_hold(bound: BoundPlan) -> bool:
    """Whether any attention holds something for pairs. An estimate takes longer than most checks."""
    if bound.plan.model.attention is AttentionKernel.EAGER:
        return True
    device = "cpu" if bound.plan.mesh.backend == "gloo" else "cuda"
    calls = attention_calls(bound.plan, bound.inventory)
    return any(call.has_mask or kernel_of(call, device=device) is Kernel.MATH for call in calls)


def _nearest(bound: BoundPlan, limit: float) -> Change | None:
    # Few plans hold much, and a check of the others should not wait for the import.
    from planc.capacity.fits import Neighbour

    plain = replace(bound, plan=replace(bound.plan, expectations=()))
    for text, edit in _changes(plain):
        near = Neighbour((text,), edit(plain))
        left = sum(one.pair_bytes for one in Draft(near.bound).estimate.attention)
        if left <= limit and near.is_sound:
            return Change(near.texts, left)
    return None


def _changes(bound: BoundPlan) -> Iterator[tuple[str, _Edit]]:
    """Changes that may leave less, those that cost least first."""
    from planc.capacity.fits import checkpointing, micro_batches  # as above

    model, cp = bound.plan.model, bound.plan.context_parallel
    if model.attention is AttentionKernel.EAGER:
        fused = replace(model, attention=AttentionKernel.SDPA)
        yield "model.attention = sdpa", _rebound(lambda plan: replace(plan, model=fused))
        without = replace(fused, dropout=False)
        text = "model.attention = sdpa and model.dropout = false"
        yield text, _rebound(lambda plan: replace(plan, model=without))
    if cp is not None and cp.rotate is not Rotate.ULYSSES:
        exchanged = replace(cp, rotate=Rotate.ULYSSES)
        yield (
            "context_parallel.rotate = ulysses",
            _rebound(lambda plan: replace(plan, context_parallel=exchanged)),
        )
    if bound.plan.compile is not None:
        yield "no `compile` block", _rebound(lambda plan: replace(plan, compile=None))
    for change in (*checkpointing(bound), *micro_batches(bound)):
        yield change.text, change.edit


def _rebound(edit: Callable[[Plan], Plan]) -> _Edit:
    return lambda before: bind(edit(before.plan), before.model, before.auto)
