"""The memory that a plan needs, compared with its device, and similar plans that need less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any

from planc.capacity.draft import Draft
from planc.checks import Subject, run_checks
from planc.devices.hardware import FITS, Change, Demand, Device
from planc.diagnostics import has_errors
from planc.plan.bind import BoundPlan
from planc.plan.facts import tokens_per_step
from planc.plan.loss_chunks import num_chunks
from planc.plan.spec import FsdpSpec, ReduceEvery, Unit
from planc.plan.units import UnitGroup, in_waves
from planc.record import record
from planc.tables import plural
from planc.vocab import MeshDim

MAX_CHANGES = 4
"""The number of similar plans that a finding names."""


def demand(draft: Draft) -> Demand | None:
    """The memory that the plan needs on its device; None without a device. The plan may break rules."""
    bound = draft.bound
    hardware = bound.plan.hardware
    if hardware is None:
        return None
    memory = draft.estimate.memory
    peak = memory.peak.num_bytes
    limit = FITS * hardware.gpu.memory_bytes
    changes = () if peak <= limit else _changes(bound, hardware.gpu)
    return Demand(hardware.gpu, peak, memory.peak_phase, memory.peak_parts, changes)


def _changes(bound: BoundPlan, device: Device) -> tuple[Change, ...]:
    """The similar plans that fit, with the smallest change of each kind; pairs if no single change fits."""
    limit = FITS * device.memory_bytes
    changes: list[Change] = []
    for num_changes in (1, 2):
        for group in neighbours(bound, num_changes=num_changes):
            change = _first_that_fits(group, limit)
            changes.extend([change] if change else [])
            if len(changes) == MAX_CHANGES:
                return tuple(changes)
        if changes:
            break
    return tuple(changes)


def _first_that_fits(group: tuple[Neighbour, ...], limit: float) -> Change | None:
    """The first of plans with growing changes that fits; None right away if the largest does not."""
    if _peak_bytes(group[-1].bound) > limit:
        return None
    for near in group:
        peak = _peak_bytes(near.bound)
        if peak <= limit and near.is_sound:
            return Change(near.texts, peak)
    return None


def _peak_bytes(bound: BoundPlan) -> int:
    return Draft(bound).estimate.memory.peak.num_bytes


Edit = Callable[[BoundPlan], BoundPlan]

_FACTORS = (2, 4, 8)


@record
class Neighbour:
    """A plan some changes away: the text of the changes, and the plan with them."""

    texts: tuple[str, ...]
    bound: BoundPlan

    @property
    def is_sound(self) -> bool:
        return not has_errors(tuple(run_checks(Subject(self.bound))))


@record
class Edited:
    """A change of a plan, in words and as a function."""

    text: str
    edit: Edit


def neighbours(bound: BoundPlan, *, num_changes: int) -> Iterator[tuple[Neighbour, ...]]:
    """The plans that many changes away, valid or not: a group for each choice of kinds of changes.

    Groups that need no more ranks come first; within a group, smaller changes come first and the largest of
    all is last. The tokens of a step stay the same if the plan sets them. Expectations are left out, since a
    change may break them.
    """
    plain = replace(bound, plan=replace(bound.plan, expectations=()))
    kinds = [changes for changes in _changed_plans(plain) if changes]
    for chosen in combinations(kinds, num_changes):
        yield tuple(_made(plain, changes) for changes in product(*chosen))


def _made(bound: BoundPlan, changes: tuple[Edited, ...]) -> Neighbour:
    near = bound
    for change in changes:
        near = change.edit(near)
    *texts, last = (change.text for change in changes)
    num_ranks = near.plan.mesh.world_size
    if num_ranks != bound.plan.mesh.world_size:
        last += f", on {plural(num_ranks, 'rank')}"
    return Neighbour((*texts, last), near)


def _changed_plans(bound: BoundPlan) -> Iterator[tuple[Edited, ...]]:
    """The changes of each kind, the smallest first."""
    yield tuple(_chunked(bound))
    yield tuple(checkpointing(bound))
    if any(not group.unit.reshard_after_forward for group in bound.units):
        yield (Edited("reshard_after_forward = true in every unit", _reshard),)
    plan = bound.plan
    if plan.fsdp is not None and plan.fsdp.reduce_every is ReduceEvery.STEP:
        # Of use in a step that accumulates, as one with a smaller micro-batch does.
        reduced = partial(_with_fsdp, reduce_every=ReduceEvery.MICRO_BATCH)
        yield (Edited("fsdp.reduce_every = micro_batch", reduced),)
    yield tuple(micro_batches(bound))
    if plan.fsdp is None:
        yield tuple(_sharded(bound))
    dims = (
        (MeshDim.DP_SHARD, plan.fsdp is not None and MeshDim.DP_SHARD in plan.fsdp.on),
        (MeshDim.CP, plan.context_parallel is not None),
        (MeshDim.TP, plan.tensor_parallel is not None),
    )
    for mesh_dim, is_used in dims:
        yield tuple(_resized(bound, mesh_dim, factor) for factor in _FACTORS if is_used)


def _chunked(bound: BoundPlan) -> Iterator[Edited]:
    if num_chunks(_in_chunks(bound)) > num_chunks(bound):
        yield Edited("train.loss_chunks = auto", _in_chunks)


def _in_chunks(before: BoundPlan) -> BoundPlan:
    train = replace(before.plan.train, loss_chunks="auto")
    return replace(before, plan=replace(before.plan, train=train))


def checkpointing(bound: BoundPlan) -> Iterator[Edited]:
    blocks = bound.inventory.blocks
    members = bound.inventory.layers()
    if not blocks or all(fqn in bound.checkpointed and fqn not in bound.selective for fqn in members):
        return
    span = bound.plan.span("model")
    rules = ", ".join(f'"{name}.*" -> full' for name in blocks)
    yield Edited(
        f"activation_checkpoint {{ {rules} }}",
        lambda before: replace(
            before, checkpointed=dict.fromkeys(members, span), selective=frozenset(), offloaded=frozenset()
        ),
    )


def _reshard(bound: BoundPlan) -> BoundPlan:
    units = tuple(
        replace(group, unit=replace(group.unit, reshard_after_forward=True)) for group in bound.units
    )
    return replace(_with_fsdp(bound, reshard_after_backward=True), units=units)


def _with_fsdp(bound: BoundPlan, **changed: Any) -> BoundPlan:
    fsdp = bound.plan.fsdp
    assert fsdp is not None, "only a plan with units has such a change"
    return replace(bound, plan=replace(bound.plan, fsdp=replace(fsdp, **changed)))


def micro_batches(bound: BoundPlan) -> Iterator[Edited]:
    plan = bound.plan
    now = plan.data.micro_batch

    def edit_to(size: int) -> Edit:
        def edit(before: BoundPlan) -> BoundPlan:
            data = replace(before.plan.data, micro_batch=size)
            return replace(before, plan=replace(before.plan, data=data))

        return edit

    for size in range(now - 1, 0, -1):
        if now % size == 0:
            tokens = tokens_per_step(plan) * size // now
            also = "" if plan.train.tokens_per_step else f", with {tokens:_} tokens per step"
            yield Edited(f"data.micro_batch = {size}{also}", edit_to(size))


def _sharded(bound: BoundPlan) -> Iterator[Edited]:
    """Changes that shard parameters over the ranks of whole replicas, then over more ranks."""
    blocks, num_replicas = bound.inventory.blocks, bound.plan.mesh.dp_replicate
    if not blocks:
        return
    units = ", ".join(f'"{name}.*" -> unit' for name in blocks)
    place = " instead of dp_replicate" if num_replicas > 1 else ""
    for factor in (1, *_FACTORS):
        size = factor * num_replicas
        if size > 1:
            text = f"mesh.dp_shard = {size}{place}, with fsdp on dp_shard {{ {units} }}"
            yield Edited(text, partial(_shard, size=size))


def _shard(before: BoundPlan, *, size: int) -> BoundPlan:
    span = before.plan.span("mesh")
    fsdp = FsdpSpec.on_dp_shard((), span)
    unit = Unit(reshard_after_forward=True)
    units = in_waves([UnitGroup((fqn,), unit, span) for fqn in before.inventory.layers()])
    mesh = replace(before.plan.mesh, dp_replicate=1, dp_shard=size)
    return replace(before, plan=replace(before.plan, mesh=mesh, fsdp=fsdp), units=units)


def _resized(bound: BoundPlan, mesh_dim: MeshDim, factor: int) -> Edited:
    size = factor * bound.plan.mesh.size(mesh_dim)

    def edit(before: BoundPlan) -> BoundPlan:
        mesh = before.plan.mesh
        match mesh_dim:
            case MeshDim.DP_SHARD:
                mesh = replace(mesh, dp_shard=size)
            case MeshDim.CP:
                mesh = replace(mesh, cp=size)
            case MeshDim.TP:
                mesh = replace(mesh, tp=size)
        return replace(before, plan=replace(before.plan, mesh=mesh))

    return Edited(f"mesh.{mesh_dim} = {size}", edit)
