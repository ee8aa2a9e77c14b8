"""FSDP2."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from planc.graph.ops import FullyShard, PrefetchUnits
from planc.runtime.interpreter import Position
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.mesh import Mesh, fsdp_mesh
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.private import end_backward_of, finish_backward, forward_order
from planc.runtime.torch.run import Run


@dataclass(frozen=True, slots=True)
class RankUnit:
    """The first module of a unit, which has the unit's state, and the op that made it."""

    module: FSDPModule
    op: FullyShard
    stage: int | None
    """Its stage of a pipeline; None without one, and for a root without parameters."""


@dataclass(frozen=True, slots=True)
class Units:
    """FSDP's units on this rank."""

    units: tuple[RankUnit, ...] = ()
    lowest: set[FSDPModule] = field(default_factory=set)
    """The unit where backward ends, once a forward has shown it."""


def shard_fully(
    run: Run, op: FullyShard, mesh: Mesh, model: nn.Module, pipeline: Pipeline | None, units: Units | None
) -> Units:
    """Shard each group of modules; gradients are summed over the ranks, never averaged.

    The loss is already divided by the step's global token count, so a sum is right for every mesh. Factor 1
    with forced sums also avoids a reduction that gloo lacks, and a double division on groups of one rank.
    A single rank has nothing to sum: any factor would have it divide all gradients into new tensors.
    """
    own_mesh = fsdp_mesh(run, mesh, shard_over=op.shard_over, replicate_over=op.replicate_over)
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPES[op.param_dtype] if op.param_dtype else None,
        reduce_dtype=TORCH_DTYPES[op.reduce_dtype] if op.reduce_dtype else None,
    )
    # Pages are pinned for the copy to a CUDA device; without one, pinning has no use.
    is_pinned = run.device.type == "cuda"
    offload = CPUOffloadPolicy(pin_memory=is_pinned) if op.cpu_offload else OffloadPolicy()
    # A head's output is a view of its DTensor. The warning is about writing into it, which planc never does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    rank_units = [*units.units] if units is not None else []
    by_features = run.graph.experts.by_features if run.graph.experts else ()
    for group in filter(None, (held(pipeline, group) for group in op.groups)):
        modules = [model.get_submodule(fqn) for fqn in group]
        target = modules if len(modules) > 1 else modules[0]
        fully_shard(
            target,
            mesh=own_mesh,
            reshard_after_forward=op.reshard_after_forward,
            mp_policy=policy,
            offload_policy=offload,
            shard_placement_fn=_by_features if group[0] in by_features else None,
        )
        first = modules[0]
        assert isinstance(first, FSDPModule)
        rank_units.append(RankUnit(first, op, pipeline.stage_of(group[0]) if pipeline is not None else None))
    every = Units(tuple(rank_units))
    _keep_whole(every)
    for module in model.modules() if own_mesh.size() > 1 else ():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return every


def _by_features(_: nn.Parameter) -> Shard:
    """The dimension after that of experts."""
    return Shard(1)


def prefetch_units(run: Run, op: PrefetchUnits, model: nn.Module, units: Units) -> None:
    """Let each unit gather those that follow it, in forward's order and in backward's."""
    modules = [model.get_submodule(fqn) for fqn in op.units]
    forward: list[FSDPModule] = [module for module in modules if isinstance(module, FSDPModule)]
    # Backward, too, begins with the root, which comes first.
    backward = [*forward[:1], *reversed(_passed(forward[1:]))]
    for index, unit in enumerate(forward):
        unit.set_modules_to_forward_prefetch(forward[index + 1 : index + 1 + op.ahead])
    for index, unit in enumerate(backward):
        unit.set_modules_to_backward_prefetch(backward[index + 1 : index + 1 + op.ahead])


@contextmanager
def ending_as_stated(
    model: nn.Module, units: Units | None, pipeline: Pipeline | None, at: Position
) -> Iterator[None]:
    """Inside, a backward reduces gradients and frees parameters as the ops of its stage's units have it.

    One that defers gradients reduces none: see `reduce_deferred`.
    """
    if units is None:
        yield
        return
    if pipeline is not None and at.stage not in pipeline.prefetching:
        _prefetch_in_stage(model, pipeline, at.stage)
    elif pipeline is None and not units.lowest:
        _prefetch_to_lowest(model, units)
    _set_end(model, units, pipeline, at, reduces=pipeline is None or not pipeline.op.deferred)
    yield
    if at.is_last_micro_step:
        # Backwards of other stages follow, in this step and the next.
        _keep_whole(units)


def _set_end(
    model: nn.Module, units: Units, pipeline: Pipeline | None, at: Position, *, reduces: bool
) -> None:
    is_last = at.is_last_micro_step
    if pipeline is not None and isinstance(model, FSDPModule):
        # A rank's first stage is the last one that a micro-batch's gradients reach.
        model.set_is_last_backward(reduces and is_last and at.stage == pipeline.own[0])
    for unit in units.units:
        if unit.stage in (None, at.stage):
            is_each = unit.op.reduce_every == "micro_batch"
            unit.module.set_requires_gradient_sync(reduces and (is_last or is_each), recurse=False)
            if is_last and not unit.op.reshard_after_backward:
                unit.module.set_reshard_after_backward(True, recurse=False)


def _passed(units: Sequence[FSDPModule]) -> Sequence[FSDPModule]:
    """The units that backward passes, of units in the order of forward: from the first with a trained
    parameter on."""
    trained = (any(weight.requires_grad for weight in unit.parameters()) for unit in units)  # type: ignore[attr-defined]
    first = next((index for index, is_trained in enumerate(trained) if is_trained), len(units))
    return units[first:]


def _prefetch_to_lowest(model: nn.Module, units: Units) -> None:
    """Let the last unit of backward, and units inside of it, which ended before it in forward, gather no
    other: by themselves they would gather the frozen one before them."""
    order = list(dict.fromkeys(forward_order(model))) if isinstance(model, FSDPModule) else []
    passed = _passed(order)
    units.lowest.update(passed[:1])
    for last in order[1 : len(order) - len(passed) + 1] if passed else ():
        last.set_modules_to_backward_prefetch([last])


def _prefetch_in_stage(model: nn.Module, pipeline: Pipeline, stage: int) -> None:
    """Let each unit gather the one that backward needs next, which is the one whose forward ended before its
    own. By itself FSDP would gather what ran before in the forward of another micro-batch or stage."""
    pipeline.prefetching.add(stage)
    if not isinstance(model, FSDPModule):
        return
    own = {module for name, module in model.named_modules() if pipeline.stage_of(name) == stage}
    order = [unit for unit in dict.fromkeys(forward_order(model)) if unit in own]
    # What another stage sends has a gradient.
    passed = order if stage else _passed(order)
    for unit in order[: len(order) - len(passed)]:
        # Those inside of the first that is passed ended before it.
        unit.set_modules_to_backward_prefetch([unit])
    for before, unit in zip((*passed[:1], *passed), passed, strict=False):
        unit.set_modules_to_backward_prefetch([before])


def reduce_deferred(model: nn.Module, units: Units | None, pipeline: Pipeline, at: Position) -> None:
    """Let units take in the gradients of weights that FSDP saw no backward of, and reduce them as their ops
    have it."""
    if units is None:
        return
    own = [unit.module for unit in units.units if unit.stage == at.stage]
    # Experts may be all that is sharded: then each of their units is a root of its own.
    roots = [model] if isinstance(model, FSDPModule) else own
    _set_end(model, units, pipeline, at, reduces=True)
    for root in roots:
        # Units that the next backward needs stay gathered.
        root.set_reshard_after_backward(False)
    for unit in own:
        end_backward_of(unit)
    for root in roots:
        finish_backward(root)
        root.set_reshard_after_backward(True)
    _keep_whole(units)


def reshard(model: nn.Module) -> None:
    """Reshard all modules: without a full backward, some stay gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _keep_whole(units: Units) -> None:
    """Let backwards leave gathered what is to stay whole."""
    for unit in units.units:
        if not unit.op.reshard_after_backward:
            unit.module.set_reshard_after_backward(False, recurse=False)
