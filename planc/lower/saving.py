"""The saves of a run, and where it starts, as ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, assert_never

from planc.graph.ops import BranchRun, NameBase, ResumeCheckpoint, SaveCheckpoint, SettleSave
from planc.inventory.routers import routers
from planc.plan.balance import bias_update
from planc.plan.bind import BoundPlan
from planc.plan.checkpoint import AsyncSave, CheckpointSpec, FrozenBase, SyncSave, WhenBusy
from planc.plan.spec import Plan, Weights
from planc.vocab import MeshDim


def save_checkpoint(plan: Plan) -> Iterator[SaveCheckpoint]:
    """One op, if the plan saves."""
    if (checkpoint := plan.checkpoint) is None or not _saves(checkpoint):
        return
    yield SaveCheckpoint(
        every_steps=checkpoint.save_steps,
        every_seconds=checkpoint.save_seconds,
        at_end=checkpoint.save_last,
        keep_last=checkpoint.keep_last,
        mode="async" if isinstance(checkpoint.mode, AsyncSave) else "sync",
        when_busy=_when_busy(checkpoint.mode),
        span=plan.span("checkpoint"),
    )


def name_base(bound: BoundPlan) -> Iterator[NameBase]:
    """One op, if files hold the parameters that the plan freezes, and checkpoints may leave them out."""
    plan = bound.plan
    if (checkpoint := plan.checkpoint) is None or checkpoint.base is FrozenBase.STORED:
        return
    freezes = plan.freeze is not None or plan.adapter is not None
    saves = _saves(checkpoint) or checkpoint.resumes
    if freezes and saves and bound.frozen and plan.model.weights is Weights.PRETRAINED:
        moved = {router.bias for router in routers(bound.inventory)} if bias_update(plan) is not None else ()
        # The files may lack a new head.
        lacking = {*moved, *bound.inventory.new_head}
        kept = tuple(name for name in bound.frozen if name not in lacking)
        yield NameBase(path=plan.model.hf, parameters=kept, span=plan.span("checkpoint.base"))


def resume(plan: Plan) -> Iterator[ResumeCheckpoint | BranchRun]:
    """The ops that give a run the training state to start from, if it has one."""
    if (checkpoint := plan.checkpoint) is None or not checkpoint.resumes:
        return
    span = plan.span("checkpoint.resume")
    yield ResumeCheckpoint(policy="latest", span=span)
    if checkpoint.branches_from is not None:
        yield BranchRun(path=checkpoint.branches_from, span=span)


def settle_save(plan: Plan) -> Iterator[SettleSave]:
    """One op, if a save may run while training continues."""
    checkpoint = plan.checkpoint
    if checkpoint is not None and _saves(checkpoint) and isinstance(checkpoint.mode, AsyncSave):
        yield SettleSave(over=tuple(MeshDim), span=plan.span("checkpoint.mode"))


def _saves(checkpoint: CheckpointSpec) -> bool:
    return checkpoint.save_every is not None or checkpoint.save_last


def _when_busy(mode: SyncSave | AsyncSave) -> Literal["wait", "skip"] | None:
    if isinstance(mode, SyncSave):
        return None
    match mode.when_busy:
        case WhenBusy.WAIT:
            return "wait"
        case WhenBusy.SKIP:
            return "skip"
        case _:
            assert_never(mode.when_busy)
