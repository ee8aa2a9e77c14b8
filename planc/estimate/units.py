"""FSDP units: the parameters that each gathers, and their sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TypeVar

from planc.estimate.layout import ParameterLayout
from planc.estimate.rank_work import RankWork
from planc.graph.ops import FullyShard
from planc.record import record
from planc.vocab import DType, GroupDim, MeshDim, outwards

Dim = TypeVar("Dim", bound=GroupDim)


@record
class Unit:
    """One group of `fully_shard`.

    `num_gradients` are the gradients before reduction, of the parameters that tensor parallelism leaves on a
    rank; `num_local` are the rank's own parameters, with the padding that makes all ranks' equal, and
    `num_gathered` those of all ranks. `num_reduced` and `num_scattered` are the same of gradients, and
    `num_deferred` are those of `num_reduced` that a pipeline computes apart from their backward.
    """

    modules: tuple[str, ...]
    num_gradients: int
    num_local: int
    num_reduced: int
    num_deferred: int
    parts: int
    reshard_after_forward: bool
    reshard_after_backward: bool
    num_calls: int
    """The calls of it in a forward, which gathers it in each where the one before resharded."""
    num_with_gradients: int
    """The calls that backward passes."""
    is_ahead: bool
    """Whether backward gathers it ahead of itself once more: for a call that it does not pass."""
    has_backward: bool
    """Whether backward passes any of its modules, for which it is gathered again."""
    reduces_each: bool
    """Whether every micro step's backward reduces its gradients, not only the last one's."""
    shard_over: tuple[GroupDim, ...]
    replicate_over: tuple[MeshDim, ...]
    compute_dtype: DType
    """The dtype in which it is gathered."""
    reduce_dtype: DType
    """The dtype in which its gradients are reduced."""

    def num_gathers(self, times: int) -> int:
        """Count its gathers in a step of so many micro steps."""
        if not self.reshard_after_backward:
            return 1
        if not self.reshard_after_forward:
            return times
        return times * (self.num_calls + self.has_backward * self.num_with_gradients + self.is_ahead)

    def num_reductions(self, times: int) -> int:
        """Count the reduce-scatters of its gradients in a step of so many micro steps.

        In the last backward through several calls, the first of them reduces what earlier micro steps left.
        """
        if self.reduces_each:
            return times
        return 2 if times > 1 and self.num_with_gradients > 1 else 1

    @property
    def num_gathered(self) -> int:
        return self.parts * self.num_local

    @property
    def num_scattered(self) -> int:
        return self.parts * self.num_reduced


def units(work: RankWork) -> tuple[Unit, ...]:
    """The units in the order in which forward gathers them: the root, then the modules' own."""
    owner = {fqn: op_group for op_group in _groups(work) for fqn in op_group[1]}
    parameters: dict[tuple[str, ...], list[ParameterLayout]] = {}
    for layout in work.layouts.values():
        names = (*outwards(layout.module), "")
        group = next((owner[name][1] for name in names if name in owner), None)
        if group is not None:
            parameters.setdefault(group, []).append(layout)
    unordered = [
        Unit(
            modules=group,
            num_gradients=sum(prod(one.tp_shape) for one in parameters[group] if one.has_gradient),
            num_local=_num_local(op, parameters[group]),
            num_reduced=sum(prod(one.local_shape) for one in parameters[group] if one.has_gradient),
            num_deferred=sum(prod(one.local_shape) for one in parameters[group] if _is_deferred(work, one)),
            parts=prod(work.graph.size(mesh_dim) for mesh_dim in op.shard_over),
            reshard_after_forward=op.reshard_after_forward,
            reshard_after_backward=op.reshard_after_backward,
            num_calls=max(len(work.module(name).calls) for name in group),
            num_with_gradients=max(num_with_gradients(work, name) for name in group),
            is_ahead=False,
            has_backward=any(work.is_passed(name) for name in group),
            reduces_each=op.reduce_every == "micro_batch",
            shard_over=_more_than_one(work, op.shard_over),
            replicate_over=_more_than_one(work, op.replicate_over),
            compute_dtype=_compute_dtype(op, parameters[group]),
            reduce_dtype=op.reduce_dtype or _compute_dtype(op, parameters[group]),
        )
        for op, group in _groups(work)
        if group in parameters
    ]
    order = {name: index for index, name in enumerate(("", *work.inventory.names()))}
    ordered = sorted(unordered, key=lambda unit: min(order[name] for name in unit.modules))
    ahead = _gathered_ahead(work, ordered)
    return tuple(replace(unit, is_ahead=unit.modules in ahead) for unit in ordered)


def _gathered_ahead(work: RankWork, units: Sequence[Unit]) -> set[tuple[str, ...]]:
    """The units whose call without gradients ends right before another's with them.

    FSDP gathers ahead the unit that ran before, whether or not backward passes that call. Layers that a model
    runs again and again run so often without gradients first, and the last of them is gathered once.
    """
    if all(unit.num_calls == unit.num_with_gradients for unit in units):
        return set()
    names = enumerate(work.inventory.names())
    last_inside = {around: index for index, name in names for around in (*outwards(name), "")}
    by_end = sorted(
        units, key=lambda unit: max((last_inside[name], -len(outwards(name))) for name in unit.modules)
    )
    again = [unit for unit in by_end if unit.num_calls > unit.num_with_gradients > 0]
    before = [
        unit for unit, then in pairwise(by_end) if not unit.num_with_gradients and then.num_with_gradients
    ]
    return {unit.modules for unit in (*again[-1:], *before)}


def num_with_gradients(work: RankWork, fqn: str) -> int:
    """Count the calls of a module that backward passes."""
    return sum(not call.without_gradients for call in work.module(fqn).calls)


def _is_deferred(work: RankWork, layout: ParameterLayout) -> bool:
    return layout.has_gradient and layout.module in work.deferred and layout.fqn.endswith(".weight")


def _groups(work: RankWork) -> Iterator[tuple[FullyShard, tuple[str, ...]]]:
    for op in work.graph.setup:
        if isinstance(op, FullyShard):
            for group in op.groups:
                if own := tuple(name for name in group if work.inventory.get(name) is not None):
                    yield op, own


def _num_local(op: FullyShard, held: list[ParameterLayout]) -> int:
    dtype = _compute_dtype(op, held)
    return sum(layout.num_gathered(dtype) for layout in held)


def _compute_dtype(op: FullyShard, held: list[ParameterLayout]) -> DType:
    """The one dtype of a unit's parameters, which may be cast."""
    return op.param_dtype or held[0].dtype


def _more_than_one(work: RankWork, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(dim for dim in dims if work.graph.size(dim) > 1)
