"""FSDP2."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from planc.graph.ops import FullyShard, PrefetchUnits
from planc.runtime.interpreter import Position
from planc.runtime.torch.parallel.mesh import fsdp_mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.parallel.rank_unit import RankUnit
from planc.runtime.torch.private import end_backward_of, finish_backward, forward_order
from planc.runtime.torch.session import Session
from planc.runtime.torch.weights.dtypes import TORCH_DTYPES


def shard_fully(session: Session, op: FullyShard, position: Position) -> None:
    """Shard each group of modules; gradients are summed over the ranks, never averaged.

    The loss is already divided by the step's global token count, so a sum is right for every mesh. Factor 1
    with forced sums also avoids a reduction that gloo lacks and a double division on groups of one rank.
    """
    mesh = fsdp_mesh(session, shard_over=op.shard_over, replicate_over=op.replicate_over)
    policy = MixedPrecisionPolicy(
        param_dtype=TORCH_DTYPES[op.param_dtype] if op.param_dtype else None,
        reduce_dtype=TORCH_DTYPES[op.reduce_dtype] if op.reduce_dtype else None,
    )
    # Pages are pinned for the copy to a CUDA device; without one, pinning has no use.
    is_pinned = session.device.type == "cuda"
    offload = CPUOffloadPolicy(pin_memory=is_pinned) if op.cpu_offload else OffloadPolicy()
    # A head's output is a view of its DTensor. The warning is about writing into it, which planc never does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for group in filter(None, map(session.held, op.groups)):
        modules = [session.model.get_submodule(fqn) for fqn in group]
        target = modules if len(modules) > 1 else modules[0]
        fully_shard(
            target,
            mesh=mesh,
            reshard_after_forward=op.reshard_after_forward,
            mp_policy=policy,
            offload_policy=offload,
        )
        first = modules[0]
        assert isinstance(first, FSDPModule)
        stage = None if session.pipeline is None else session.pipeline.stage_of(group[0])
        session.units.append(RankUnit(first, op, stage))
    _keep_whole(session)
    for module in session.model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def prefetch_units(session: Session, op: PrefetchUnits, position: Position) -> None:
    """Let each unit gather those that follow it, in forward's order and in backward's."""
    modules = [session.model.get_submodule(fqn) for fqn in op.units]
    forward: list[FSDPModule] = [module for module in modules if isinstance(module, FSDPModule)]
    # Backward, too, begins with the root, which comes first.
    backward = [*forward[:1], *reversed(forward[1:])]
    for index, unit in enumerate(forward):
        unit.set_modules_to_forward_prefetch(forward[index + 1 : index + 1 + op.ahead])
    for index, unit in enumerate(backward):
        unit.set_modules_to_backward_prefetch(backward[index + 1 : index + 1 + op.ahead])


@contextmanager
def ending_as_stated(session: Session, position: Position) -> Iterator[None]:
    """Inside, a backward reduces gradients and frees parameters as the ops of its stage's units have it.

    One that defers gradients reduces none: see `reduce_deferred`.
    """
    pipeline = session.pipeline
    if pipeline is not None and position.stage not in pipeline.prefetching:
        _prefetch_in_stage(session.model, pipeline, position.stage)
    _set_end(session, position, reduces=pipeline is None or not pipeline.op.deferred)
    yield
    if position.is_last_micro_step:
        # Backwards of other stages follow, in this step and the next.
        _keep_whole(session)


def _set_end(session: Session, position: Position, *, reduces: bool) -> None:
    is_last, pipeline = position.is_last_micro_step, session.pipeline
    if pipeline is not None and isinstance(session.model, FSDPModule):
        # A rank's first stage is the last one that a micro-batch's gradients reach.
        session.model.set_is_last_backward(reduces and is_last and position.stage == pipeline.own[0])
    for unit in session.units:
        if unit.stage in (None, position.stage):
            is_each = unit.op.reduce_every == "micro_batch"
            unit.module.set_requires_gradient_sync(reduces and (is_last or is_each), recurse=False)
            if is_last and not unit.op.reshard_after_backward:
                unit.module.set_reshard_after_backward(True, recurse=False)


def _prefetch_in_stage(model: nn.Module, pipeline: Pipeline, stage: int) -> None:
    """Let each unit gather the one that backward needs next, which is the one whose forward ended before its
    own. By itself FSDP would gather what ran before in the forward of another micro-batch or stage."""
    pipeline.prefetching.add(stage)
    if not isinstance(model, FSDPModule):
        return
    own = {module for name, module in model.named_modules() if pipeline.stage_of(name) == stage}
    before: FSDPModule | None = None
    for unit in dict.fromkeys(forward_order(model)):
        if unit in own:
            unit.set_modules_to_backward_prefetch([before or unit])
            before = unit


def reduce_deferred(session: Session, position: Position) -> None:
    """Let units take in the gradients of weights that FSDP saw no backward of, and reduce them as their ops
    have it."""
    if not isinstance(session.model, FSDPModule):
        return
    _set_end(session, position, reduces=True)
    # Units that the next backward needs stay gathered.
    session.model.set_reshard_after_backward(False)
    for unit in session.units:
        if unit.stage == position.stage:
            end_backward_of(unit.module)
    finish_backward(session.model)
    session.model.set_reshard_after_backward(True)
    _keep_whole(session)


def _keep_whole(session: Session) -> None:
    """Let backwards leave gathered what is to stay whole."""
    for unit in session.units:
        if not unit.op.reshard_after_backward:
            unit.module.set_reshard_after_backward(False, recurse=False)
